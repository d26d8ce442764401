"""Which policy for idle GPUs binds a container: fields are inherited, and nobody frees himself."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.idle import policy
from fairlead.plan.idle.policy import Policies, Policy
from fairlead.plan.schedule.fairshare.tree import Spec, Tree
from fairlead.settings import IdleSettings
from fairlead.wire.kubernetes.scheduling.queue import IdleSpec

_DEFAULT = Policy(action="off", below_percent=5, after_s=3600, warn_s=1800)


def _policies(default: Policy = _DEFAULT, **idle: IdleSpec) -> Policies:
    specs = (
        Spec(name="lab"),
        Spec(name="vision", parent="lab", namespaces=("vision",)),
        Spec(name="open"),
        Spec(name="zoned", namespaces=("vision", "speech")),
    )
    return Policies(Tree(specs), idle, default)


def test_a_field_comes_from_the_nearest_queue_that_gives_it() -> None:
    lab, vision = IdleSpec(action="stop", below_percent=10, warn_seconds=600), IdleSpec(below_percent=2)
    found = _policies(lab=lab, vision=vision).of("vision", "")
    assert (found.action, found.below_percent, found.after_s, found.warn_s) == ("stop", 2, 3600, 600)
    assert found.source == 'queue "lab"'


def test_off_in_a_queue_ends_what_it_would_inherit() -> None:
    stop = Policy(action="stop", below_percent=5, after_s=60, warn_s=60)
    assert _policies(stop, vision=IdleSpec(action="off")).of("vision", "").action == "off"
    assert _policies(stop).of("elsewhere", "").action == "stop"


def test_a_queue_that_anybody_may_name_frees_nobody() -> None:
    stop = Policy(action="stop", below_percent=5, after_s=3600, warn_s=60, exempt=frozenset())
    found = _policies(stop, open=IdleSpec(action="off", exempt=("vision",))).of("vision", "open")
    assert found.action == "stop"
    assert not policy.is_exempt(found, "vision", "train")
    # One that an administrator gave to the namespace does.
    assert _policies(stop, zoned=IdleSpec(action="off")).of("vision", "zoned").action == "off"


def test_a_queue_that_is_not_ones_own_does_not_count() -> None:
    stop = Policy(action="stop", below_percent=5, after_s=3600, warn_s=60)
    assert _policies(stop, zoned=IdleSpec(action="off")).of("mallory", "zoned").action == "stop"


def test_an_open_queue_that_is_stricter_binds() -> None:
    found = _policies(open=IdleSpec(action="requeue", after_seconds=60)).of("vision", "open")
    assert (found.action, found.after_s) == ("requeue", 60)


def test_nothing_is_looked_at_where_nothing_is_said() -> None:
    assert _policies().is_off
    assert _policies(lab=IdleSpec(action="off", below_percent=3)).is_off
    assert not _policies(lab=IdleSpec(action="warn")).is_off


@pytest.mark.parametrize(
    ("exempt", "is_free"),
    [
        ("vision", True),
        ("vision/train", True),
        ("vision/other", False),
        ("ann", True),
        ("ann/train", True),
        ("", False),
    ],
)
def test_who_is_exempt(exempt: str, *, is_free: bool) -> None:
    found = policy.of_settings(IdleSettings(action="stop", exempt=f"x, {exempt}"))
    assert policy.is_exempt(found, "vision", "train", ("ann", "")) is is_free


@pytest.mark.parametrize("given", [{"below_percent": 0.0}, {"below_percent": 101.0}, {"after_min": 0.5}])
def test_settings_that_mean_nothing_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(errors.Invalid) as caught:
        policy.of_settings(IdleSettings(action="stop", **given))  # type: ignore[arg-type]
    assert caught.value.reason == "SettingInvalid"


def test_a_policy_in_words() -> None:
    assert policy.words(_DEFAULT) == "off"
    assert policy.words(Policy(action="stop", below_percent=5, after_s=3600, warn_s=900)) == "stop <5% 1h+15m"
