"""Docker's notation of `--gpus`: a number and capabilities as docker means them, all else with the word to use."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.cli.container.start import gpuoption, runflags
from fairlead.plan.cdi import capability


@pytest.mark.parametrize(
    ("typed", "count", "named"),
    [
        ("count=2", "2", ()),
        ("count=all", "all", ()),
        ("2,capabilities=utility", "2", ("utility",)),
        ("all,capabilities=compute", "all", ("compute",)),
        ('"capabilities=compute,utility",count=2', "2", ("compute", "utility")),
        ("'\"capabilities=compute,utility\",count=2'", "2", ("compute", "utility")),
        ("capabilities=utility", "1", ("utility",)),
        ("driver=nvidia,count=3,capabilities=gpu", "3", ()),
        ("capabilities=all,count=1", "1", ("all",)),
    ],
)
def test_a_count_and_capabilities_mean_what_docker_means(typed: str, count: str, named: tuple[str, ...]) -> None:
    assert gpuoption.parse(typed) == gpuoption.DockerGPUs(count=count, capabilities=named)


@pytest.mark.parametrize("typed", ["2", "all", "nvidia.com/mig-1g.10gb=1", "-1", "0,1", "GPU-1", "two", ""])
def test_other_words_are_not_dockers(typed: str) -> None:
    assert gpuoption.parse(typed) is None


@pytest.mark.parametrize(
    ("typed", "reason", "hint"),
    [
        ("device=all", "GPUsByName", "-g all"),
        ("driver=cdi,device=nvidia.com/gpu=0", "GPUsByName", "-g 1"),
        ('driver=cdi,"device=nvidia.com/gpu=0,nvidia.com/gpu=1"', "GPUsByName", "-g 2"),
        ("driver=cdi,device=nvidia.com/gpu=all", "GPUsByName", "-g all"),
        ("driver=other,count=1", "GPUsInvalid", "leave driver="),
        ("count=two", "GPUsInvalid", "-g 1"),
        ("count=1\rcapabilities=utility", "GPUsInvalid", "-g 1"),
        ("count=1\ncapabilities=utility", "GPUsInvalid", "-g 1"),
        ("2,count=2", "GPUsInvalid", "once"),
        ("2,capabilities=utility,compute", "GPUsInvalid", '"capabilities=utility,compute"'),
        ("2,capabilities=magic", "GPUsInvalid", "utility"),
        ("2,options=a", "GPUsInvalid", "options="),
        ("count=1,size=2", "GPUsInvalid", "capabilities"),
    ],
)
def test_what_is_not_offered_has_a_true_hint(typed: str, reason: str, hint: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        gpuoption.parse(typed)
    assert (caught.value.reason, hint in (caught.value.hint or "")) == (reason, True)


def test_capabilities_become_the_variable_that_the_driver_heeds() -> None:
    assert gpuoption.variables(["2"]) == {}
    assert gpuoption.variables(["2,capabilities=utility"]) == {capability.VARIABLE: "utility"}
    assert gpuoption._CAPABILITIES == capability.KNOWN


def test_an_empty_entrypoint_takes_the_images_away() -> None:
    assert runflags.entrypoint(None, ("a", "b")) == {"command": (), "args": ("a", "b")}
    assert runflags.entrypoint("sh", ("-c",)) == {"command": ("sh",), "args": ("-c",)}
    assert runflags.entrypoint("", ("a", "b")) == {"command": ("a", "b"), "args": ()}
    with pytest.raises(errors.Invalid, match="no command is given"):
        runflags.entrypoint("", ())


@pytest.mark.parametrize("text", ['"device=0,2"', "device=0,2", 'driver=nvidia,"device=0,2,2"'])
def test_names_are_read_and_counted_once(text: str) -> None:
    found = gpuoption.parse(text)
    assert found is not None
    assert (found.names, found.count) == (("0", "2"), "2")
