"""`fairlead mig …` over simulated silicon as a script sees it: change lists, what is refused, exit classes."""

from __future__ import annotations

import json
from pathlib import Path

import click.testing
import pytest
import yaml

from fairlead import errors
from fairlead.cli.core import invocation
from fairlead.cli.layer import mig
from fairlead.silicon.sim import silicon as simulation

FILE = """
version: v1
mig-configs:
  small: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}]
  large: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  "off": [{devices: all, mig-enabled: false}]
"""


class Machine:
    """A simulated machine of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.env = {
            "FAIRLEAD_STATE_FOLDER": str(folder / "state"),
            "FAIRLEAD_STATE_RUN": str(folder / "run"),
            "FAIRLEAD_SILICON_SIMULATE": "h100x8",
        }
        self.file = folder / "mig.yaml"
        self.file.write_text(FILE)
        self.folder = folder / "state" / "silicon"
        try:
            simulation.SimulatedSilicon(self.folder, "h100x8").machine.close()
        except errors.Unavailable as error:
            pytest.skip(errors.sentence(error))

    def run(self, *args: str, text: str = "") -> str:
        call = invocation.Invocation(env=self.env)
        result = click.testing.CliRunner().invoke(
            mig.group, args, input=text, obj=call, catch_exceptions=False, standalone_mode=False
        )
        return result.output

    def chosen(self, verb: str, name: str, *more: str) -> str:
        return self.run(verb, "-f", str(self.file), "-c", name, *more)

    def break_it(self, fault: str, value: str) -> None:
        silicon = simulation.SimulatedSilicon(self.folder, "h100x8")
        silicon.inject(fault, gpu=0, value=value)
        silicon.machine.close()


@pytest.fixture
def host(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_apply_leads_to_what_assert_finds_and_a_second_apply_changes_nothing(host: Machine) -> None:
    with pytest.raises(errors.Conflict, match="GPU 0: MIG is off, should be on"):
        host.chosen("assert", "small")
    assert "+ MIG device 3g.40gb at 4" in host.chosen("apply", "small")
    assert host.chosen("assert", "small") == "every GPU is as it should be\n"
    assert host.chosen("apply", "small") == "nothing to change\n"
    assert "= GPU instance 3g.40gb at 4 stays" in host.chosen("plan", "large")
    assert len(json.loads(host.run("list", "-o", "json"))[0]["instances"]) == 3


def test_plan_changes_nothing(host: Machine) -> None:
    assert "switch MIG on" in host.chosen("plan", "small")
    with pytest.raises(errors.Conflict):
        host.chosen("assert", "small", "--mode-only")


def test_what_is_in_use_is_refused_before_any_change(host: Machine) -> None:
    host.chosen("apply", "small")
    number = json.loads(host.run("list", "-o", "json"))[0]["instances"][0]["id"]
    host.break_it("process", f"{number}/0")
    with pytest.raises(errors.Conflict) as caught:
        host.chosen("apply", "large")
    assert caught.value.reason == "MIGInUse"
    assert host.chosen("assert", "small")
    assert "is in use and ends" in host.chosen("plan", "large", "--drain")


def test_exported_state_is_a_file_that_asserts(host: Machine) -> None:
    host.chosen("apply", "small")
    exported = host.run("export", "-o", "json")
    assert "every GPU" in host.run("assert", "-f", "-", text=exported)
    assert yaml.safe_load(host.run("export"))["mig-configs"] == json.loads(exported)["mig-configs"]


def test_generated_configurations_are_there_without_a_file(host: Machine) -> None:
    assert {"all-disabled", "all-1g.10gb", "all-balanced"} <= set(
        json.loads(host.run("generate-config", "-o", "json"))["mig-configs"]
    )
    assert "7g.80gb at 0" in host.run("plan", "-c", "all-7g.80gb")
    with pytest.raises(errors.NotFound, match="all-balanced"):
        host.run("plan", "-c", "all-9g")


def test_a_model_is_planned_without_its_hardware(host: Machine) -> None:
    assert "3g.71gb at 4" in host.run("plan", "--model", "h200-141", "-c", "all-3g.71gb")


@pytest.mark.parametrize("name", ["missing.yaml", "", "a\0b"])
def test_a_file_that_cannot_be_read_is_named(host: Machine, name: str) -> None:
    with pytest.raises((errors.NotFound, errors.Invalid)):
        host.run("plan", "-f", f"{host.file.parent}/{name}", "-c", "small")


def test_mode_alone_creates_nothing(host: Machine) -> None:
    host.chosen("apply", "small", "--mode-only")
    found = json.loads(host.run("list", "-o", "json"))[0]
    assert (found["migEnabled"], found["instances"]) == (True, [])
