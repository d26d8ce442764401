"""A request for a slot of a size that no partition has is refused with the choice; all others are left alone."""

from __future__ import annotations

import pytest

from fairlead.plan.fabric import size

HERE = ("cpu", "nvidia.com/h100-x1", "nvidia.com/h100-x2", "nvidia.com/h100-x4", "nvidia.com/t4-x1")


@pytest.mark.parametrize(
    ("asked", "choice"), [("nvidia.com/h100-x3", "ask for 2 or 4"), ("nvidia.com/h100-x8", "ask for 4, or")]
)
def test_a_size_that_is_not_offered_is_refused_with_what_is(asked: str, choice: str) -> None:
    refused = size.find_refusal(["cpu", asked], HERE)
    assert refused is not None
    assert refused.reason == "FabricSizeNotOffered"
    assert choice in str(refused.hint)
    assert "single GPUs" in str(refused.hint)


@pytest.mark.parametrize(
    "asked",
    [
        "nvidia.com/h100-x2",
        "nvidia.com/gpu",
        "nvidia.com/b200-x3",
        "nvidia.com/t4-x2",
        "cpu",
        "",
        "x" * 10**6,
        "a/b-x9999",
    ],
)
def test_what_is_offered_or_is_of_another_model_is_left_to_the_scheduler(asked: str) -> None:
    assert size.find_refusal([asked], HERE) is None


@pytest.mark.parametrize(
    ("resource", "gpus"),
    [
        ("nvidia.com/h100-sxm5-80gb-x4", 4),
        ("nvidia.com/b200-x16", 16),
        ("nvidia.com/h100-x1", 1),
        ("nvidia.com/h100-x17", 0),
        ("nvidia.com/x4", 0),
        ("nvidia.com/gpu", 0),
        ("example.com/h100-x4", 0),
        ("nvidia.com/h100-x4\n", 0),
    ],
)
def test_the_gpus_of_a_slot_are_read_from_our_own_names_alone(resource: str, gpus: int) -> None:
    assert size.gpus_of(resource) == gpus
