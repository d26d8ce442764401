"""TAB, as shells ask for it: names of containers, images, GPUs, profiles and faults; silence where nobody answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead.cli.core import options

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Service


def tab(line: str, **env: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_FAIRLEAD_COMPLETE": "bash_complete"}
    done = subprocess.run(
        (sys.executable, "-m", "fairlead.cli.main"),
        env={"PATH": os.defpath, **env, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fairlead logs tr", ["train"]),
        ("fairlead rm train ", []),
        ("fairlead run localhost/im", ["localhost/imported:latest"]),
        ("fairlead image rm localhost/im", ["localhost/imported:latest"]),
        ("fairlead attach tr", ["train"]),
        ("fairlead attach train ", ["0", "1", "2", "3"]),
        ("fairlead simulate fault xid 79 --gpu ", ["0", "1", "2", "3"]),
        ("fairlead simulate fault temp", ["temperature"]),
        ("fairlead up --simulate t4", ["t4x2-vgpu", "t4x4"]),
        ("fairlead service install --simulate t4", ["t4x2-vgpu", "t4x4"]),
    ],
)
def test_names_are_offered(service: Service, line: str, offered: list[str]) -> None:
    service.fairlead("run", "-d", "--name", "train", "demo")
    service.fairlead("image", "import", str(Path(__file__).parent), "imported")
    assert tab(line, **service.env) == offered


def test_without_a_service_nothing_is_offered_and_nothing_said(tmp_path: Path) -> None:
    assert tab("fairlead logs ", FAIRLEAD_API_SOCKET=str(tmp_path / "none.sock")) == []


def test_a_service_that_lies_puts_no_more_than_a_name_on_the_line() -> None:
    """What is offered is typed for the person, and a line break in its note would be one more offer."""
    lies = ["ok;touch /tmp/x", "$(id)", "`id`", "a b", "--privileged", "a\nb", "a*", "a'", "", "\x1b[2J"]
    offers = [("image:1", "running\nplain\nevil"), *((word, "") for word in lies)]
    assert [(one.value, one.help) for one in options._items(offers, "")] == [("image:1", "running\\nplain\\nevil")]
