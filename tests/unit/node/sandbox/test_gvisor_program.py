"""gVisor as a handler's program says what it is; the programs are scripts of the test's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.sandbox import gvisor
from fairlead.plan.engineconfig import gvisor as engineconfig
from fairlead.plan.engineconfig.model import Request

RUNSC = """#!/bin/sh
# --nvproxy-driver-version=550.90.12
case $1 in
  --version) echo "runsc version 20260905.0"; echo "spec: 1.2.1" ;;
  nvproxy) printf '550.90.12\\n570.133.20\\n' ;;
esac
"""


def script(folder: Path, text: str) -> str:
    path = folder / "runsc"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


async def test_a_handlers_program_says_its_version_its_drivers_and_its_options(tmp_path: Path) -> None:
    found = await gvisor.look(script(tmp_path, RUNSC))
    assert (found.version, found.drivers, found.told) == ("20260905.0", ("550.90.12", "570.133.20"), "550.90.12")


async def test_whether_it_knows_pods_is_read_from_the_handler_itself(tmp_path: Path) -> None:
    assert not (await gvisor.look(script(tmp_path, RUNSC))).joins
    runsc = tmp_path / "own"
    runsc.write_text(RUNSC)
    runsc.chmod(0o755)
    ours = engineconfig.launcher(Request(folder="/x", gvisor=str(runsc)), "podman").decode()
    assert (await gvisor.look(script(tmp_path, ours))).joins


async def test_one_without_nvproxy_knows_no_driver(tmp_path: Path) -> None:
    program = script(
        tmp_path, RUNSC.replace("550.90.12\n#", "#").replace("printf", "exit 2 #").replace("=550", "=x550")
    )
    assert (await gvisor.look(program)).drivers == ()
    assert await gvisor.refusal(program, driver="") is None
    refused = await gvisor.refusal(program, driver="570.133.20")
    assert refused is not None
    assert refused.reason == "DriverUnsupported"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#!/bin/sh\necho runc version 1.1\n", "is not gVisor"),
        ("#!/bin/sh\nexit 3\n", "ended with 3"),
        ("#!/nonexistent\n", "cannot"),
        ("#!/bin/sh\nprintf '\\033[2J%s' evil\n", "is not gVisor"),
        ("#!/bin/sh\nyes\n", "more than"),
    ],
)
async def test_a_program_that_is_something_else_is_refused_in_readable_words(
    tmp_path: Path, text: str, says: str
) -> None:
    refused = await gvisor.refusal(script(tmp_path, text), driver="")
    assert isinstance(refused, errors.Unavailable)
    assert refused.reason == "IsolationUnavailable"
    assert "\x1b" not in refused.message
    assert "runtime configure" in (refused.hint or "")


async def test_an_engine_without_the_handler_is_said_to_have_none() -> None:
    refused = await gvisor.refusal("", driver="570.133.20")
    assert refused is not None
    assert "podman has no runtime" in refused.message
