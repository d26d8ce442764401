"""`fairlead service`: the unit it writes, what it refuses, and the word a service manager waits for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.cli.process import service, up
from tests.unit.cli.conftest import fairlead


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root that systemd runs, with a systemctl that writes down what it was asked."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n[ ! -e {tmp_path}/broken ]\n')
    program.chmod(0o755)
    monkeypatch.setattr("fairlead.command.PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def asked(machine: Path) -> list[str]:
    return (machine / "asked").read_text().splitlines()


def test_install_and_uninstall_leave_nothing(machine: Path) -> None:
    done = fairlead(
        "service", "install", "--root", str(machine), "--simulate", "h100x8", "--program", "/opt/x/fairlead"
    )
    assert done.exit_code == 0, done.output
    unit = machine / service.UNIT
    assert "\nExecStart=/opt/x/fairlead up --simulate h100x8\n" in unit.read_text()
    assert asked(machine) == ["daemon-reload", "enable fairlead.service", "restart fairlead.service"]
    assert fairlead("service", "uninstall", "--root", str(machine)).exit_code == 0
    assert asked(machine)[3:] == ["disable --now fairlead.service", "daemon-reload"]
    assert not unit.exists()


def test_a_unit_of_somebody_else_stays(machine: Path) -> None:
    unit = machine / service.UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/mine\n")
    for verb in ("install", "uninstall"):
        refused = fairlead("service", verb, "--root", str(machine))
        assert (refused.exit_code, str(unit) in refused.stderr) == (4, True)
    assert unit.read_text() == "[Service]\nExecStart=/mine\n"


def test_a_machine_without_systemd_is_told_what_to_do(machine: Path) -> None:
    shutil.rmtree(machine / "run")
    refused = fairlead("service", "install", "--root", str(machine))
    assert (refused.exit_code, "fairlead up" in refused.stderr) == (6, True)


def test_what_systemctl_refuses_is_said(machine: Path) -> None:
    (machine / "broken").touch()
    refused = fairlead("service", "install", "--root", str(machine))
    assert (refused.exit_code, "systemctl daemon-reload failed" in refused.stderr) == (6, True)


def test_a_name_with_a_line_in_it_cannot_add_a_line_to_the_unit() -> None:
    with pytest.raises(errors.Invalid):
        service.unit_text(["/bin/fairlead", "up", "--simulate", "a\nExecStartPre=/bin/evil"])


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12))
def test_a_word_of_the_command_line_stays_one_word(word: str) -> None:
    (line,) = [line for line in service.unit_text(["/f", word]).splitlines() if line.startswith("ExecStart=")]
    text = line.removeprefix("ExecStart=/f ").replace("%%", "%").replace("$$", "$")
    if text.startswith('"'):
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    assert text == word


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_reads_the_unit_without_a_word(tmp_path: Path) -> None:
    text = service.unit_text(["/bin/true", "up", "--simulate", 'a "b" %n $HOME'])
    unit = tmp_path / "fairlead.service"
    unit.write_text("\n".join(line for line in text.splitlines() if not line.startswith("Documentation=")))
    done = subprocess.run(
        ("systemd-analyze", "verify", "--man=no", str(unit)), capture_output=True, text=True, check=False
    )
    words = [line for line in (done.stdout + done.stderr).splitlines() if "fairlead" in line]
    assert (done.returncode, words) == (0, [])


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_service_manager_is_told_that_we_are_ready(tmp_path: Path, is_abstract: bool) -> None:
    path = f"@fairlead-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    address: Any = f"\0{path[1:]}" if is_abstract else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(5)
        up.tell_manager(path, "READY=1")
        assert manager.recv(100) == b"READY=1"


def test_a_service_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    up.tell_manager(str(tmp_path / "nothing"), "READY=1")
    up.tell_manager("", "READY=1")
