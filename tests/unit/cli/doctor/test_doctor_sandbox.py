"""What doctor says of gVisor and Kata."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead.cli.doctor import sandbox
from fairlead.plan.sandbox import kata, nvproxy

KNOWN = nvproxy.GVisor(program="/x/gvisor", version="20260905", drivers=("550.90.12", "570.133.20"))
TOLD = nvproxy.GVisor(program="/x/gvisor", version="20260905", drivers=("550.90.12",), told="550.90.12")


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (sandbox.Facts(gvisor=KNOWN, driver="570.133.20"), "ok", "gVisor 20260905"),
        (sandbox.Facts(gvisor=KNOWN), "ok", "gVisor 20260905"),
        (sandbox.Facts(gvisor=KNOWN, driver="560.1"), "warn", "driver 560.1 is none"),
        (sandbox.Facts(gvisor=TOLD, driver="560.1", is_simulated=True), "ok", "gVisor 20260905"),
        (sandbox.Facts(gvisor=TOLD, driver="560.1"), "fail", "given driver 550.90.12 by its options"),
        (sandbox.Facts(gvisor=dataclasses.replace(KNOWN, joins=False)), "warn", "knows no pods of several containers"),
        (sandbox.Facts(problem="/x is not gVisor"), "fail", "/x is not gVisor"),
        (sandbox.Facts(demanded=("red", "blue")), "fail", "tenancies demand it"),
        (sandbox.Facts(kata=kata.Node(handlers=(kata.Handler(name="kata-x", config=""),))), "warn", "release of Kata"),
    ],
)
def test_each_is_one_finding_with_its_fix(facts: sandbox.Facts, level: str, says: str) -> None:
    found = [one for one in sandbox.check(facts) if says in one.what]
    assert [one.level for one in found] == [level]
    assert found[0].fix or level == "ok"


def test_a_machine_without_sandboxes_hears_nothing() -> None:
    assert list(sandbox.check(sandbox.Facts())) == []


def test_a_node_whose_parts_agree_is_told_so() -> None:
    handler = kata.Handler(name="kata-qemu-nvidia-gpu", config="", keeps_host_devices_out=True)
    (found,) = sandbox.check(sandbox.Facts(kata=kata.Node(handlers=(handler,), version=(4, 1, 0))))
    assert (found.level, "agree about kata-qemu-nvidia-gpu" in found.what) == ("ok", True)
