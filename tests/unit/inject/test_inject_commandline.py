"""The wrapped runtime's command line, and where refusals are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.inject import commandline


@pytest.mark.parametrize(
    ("line", "command", "bundle"),
    [
        ("create x", "create", "."),
        ("--root /r --log /l --log-format json create --bundle /b --pid-file /p x", "create", "/b"),
        ("--root=/r create --bundle=/b x", "create", "/b"),
        ("--systemd-cgroup create -b /b x", "create", "/b"),
        ("create -b/b x", "create", "/b"),
        ("create x --bundle create", "create", "create"),
        ("--log create state x", "state", "."),
        ("--root create delete create", "delete", "."),
        ("create --bundle /a --bundle /b x", "create", "/b"),
        ("create -- --bundle", "create", "."),
        ("create --bundle", "create", "."),
        ("-root /r -log /l -log-format json create -bundle /b x", "create", "/b"),
        ("-root=/r -systemd-cgroup create -b=/b x", "create", "/b"),
        ("--log-level debug --root /r create --b /b x", "create", "/b"),
        ("-debug --log-level=debug run --bundle=/b x", "run", "/b"),
        ("--systemd create --bun /b x", "create", "/b"),
        ("--manager cgroupfs create x", "create", "."),
        ("--root /r -- create -b /b x", "create", "/b"),
    ],
)
def test_command_and_bundle_are_found_among_options(line: str, command: str, bundle: str) -> None:
    argv = line.split()
    place = commandline.command_place(argv)
    assert place is not None
    assert argv[place] == command
    assert commandline.bundle_folder(argv[place + 1 :]) == bundle


@pytest.mark.parametrize(
    ("line", "found"),
    [("create --bundle /b --pid-file /p x", "x"), ("run x", "x"), ("create", ""), ("create -- x", "x")],
)
def test_a_containers_id_is_the_last_argument_of_the_command(line: str, found: str) -> None:
    assert commandline.container_id(line.split()[1:]) == found


@pytest.mark.parametrize("line", ["", "--version", "--root /r", "--log"])
def test_without_a_command_there_is_none(line: str) -> None:
    assert commandline.command_place(line.split()) is None


def test_errors_reach_the_engines_log_in_its_form(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.json"
    log.write_text('{"level":"debug","msg":"before"}\n')
    commandline.tell(["--log", str(log), "--log-format=json", "create"], "error", 'no "x"\n')
    entry = json.loads(log.read_text().splitlines()[1])
    assert (entry["level"], entry["msg"]) == ("error", 'fairlead-runtime: no "x"\n')
    assert 'fairlead-runtime: no "x"' in capfd.readouterr().err
    commandline.tell(["-log", str(log), "-log-format=json", "create"], "error", "again")
    assert json.loads(log.read_text().splitlines()[2])["msg"] == "fairlead-runtime: again"


def test_a_text_log_gets_one_line_and_a_missing_one_stops_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    commandline.tell([f"--log={log}", "create"], "warning", "two\nlines")
    assert log.read_text().count("\n") == 1
    assert "level=warning" in log.read_text()
    commandline.tell(["--log", str(tmp_path / "no" / "log"), "create"], "error", "lost")
    assert not (tmp_path / "no").exists()


def test_a_warning_is_the_operators_and_not_in_the_tenants_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    commandline.tell(["--log", str(log), "create"], "warning", "NVIDIA_VISIBLE_DEVICES asks for all: ignored")
    assert "asks for all" in log.read_text()
    assert capfd.readouterr().err == ""
    commandline.tell(["--log", str(tmp_path / "no" / "log"), "create"], "warning", "nobody else has it")
    commandline.tell(["create"], "warning", "no log is named")
    assert capfd.readouterr().err.count("fairlead-runtime: ") == 2
