"""One owner per machine: a second service is refused with the other's name, or keeps its simulated GPUs to itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors, settings
from fairlead.cli.process import down, owner
from fairlead.kernel import heldlock
from fairlead.node.isolation import ownfolder


@pytest.fixture(autouse=True)
def _locks_are_the_test_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LOCKS", tmp_path / "locks")


def config(
    folder: Path, *, name: str = "one", simulate: str = "", root: str = "/", cdi: str = "cdi"
) -> settings.Settings:
    (folder / "run").mkdir(exist_ok=True)
    return settings.load(
        flags={
            "state.folder": folder / name,
            "api.socket": folder / "run" / f"{name}.sock",
            "node.cdi_folder": folder / cdi,
            "silicon.simulate": simulate,
            "silicon.root": root,
        },
        env={},
        file=None,
    )


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({}, "state folder"),
        ({"name": "two", "cdi": "other"}, "this machine's hardware"),
        ({"name": "two", "root": "/proc"}, "CDI folder"),
    ],
)
def test_a_second_owner_is_refused_with_the_first_one_s_name(tmp_path: Path, other: dict[str, str], what: str) -> None:
    with owner.own_machine(config(tmp_path)):
        with pytest.raises(errors.Conflict) as refused, owner.own_machine(config(tmp_path, **other)):
            pass
        assert refused.value.message.startswith(what)
        assert f"pid {os.getpid()}, state folder {tmp_path}/one, since 20" in refused.value.message
        assert f"fairlead --url http+unix://{tmp_path}/run/one.sock status" in str(refused.value.hint)
        assert f"fairlead down --state-folder {tmp_path}/one --api-socket {tmp_path}/run/one.sock" in str(
            refused.value.hint
        )
        assert down.running_pid(tmp_path / "one" / "lock") == os.getpid()
    with owner.own_machine(config(tmp_path, **other)):
        pass


def test_open_folders_of_the_state_are_closed_at_every_start(tmp_path: Path) -> None:
    config_, inner = config(tmp_path), ("pods", "kubelet", "volumes", "registries", "lease")
    for _ in range(2):
        for name in ("", *inner):
            folder = tmp_path / "one" / name
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        with structlog.testing.capture_logs() as logged, owner.own_state(config_):
            modes = {name: (tmp_path / "one" / name).stat().st_mode & 0o777 for name in ("", *inner)}
        assert modes == dict.fromkeys(modes, 0o700)
        assert {line["path"] for line in logged} == {str(folder) for folder in ownfolder.of_state(config_)}
        assert all("mode 0755" in line["reason"] for line in logged)


def test_sockets_that_a_group_may_open_are_behind_a_folder_that_it_passes_and_the_kubelets_are_not(
    tmp_path: Path,
) -> None:
    config_ = settings.override(config(tmp_path), {"state.run": tmp_path / "run"})
    (tmp_path / "run").chmod(0o777)
    ownfolder.close(ownfolder.of_run(config_))
    modes = {path.name: path.stat().st_mode & 0o777 for path in ownfolder.of_run(config_)}
    assert modes == {"run": 0o755, "device-plugins": 0o700, "pod-resources": 0o700}


def test_hardware_below_another_root_is_another_machine(tmp_path: Path) -> None:
    with owner.own_machine(config(tmp_path)), owner.own_machine(config(tmp_path, name="two", cdi="two", root="/proc")):
        pass


_BESIDE = """
import json, sys
from pathlib import Path
from fairlead import settings
from fairlead.cli.process import owner
owner.LOCKS = Path(sys.argv[1]) / "locks"
folder = Path(sys.argv[1])
flags = {"state.folder": folder / "two", "node.cdi_folder": folder / "cdi", "silicon.simulate": "h100x8"}
with owner.own_machine(settings.load(flags=flags, env={}, file=None)) as owned:
    (folder / "cdi" / "mine.json").write_text("{}")
    seen = sorted(path.name for path in owned.cdi_folder.iterdir())
    print(json.dumps({"note": owned.note, "folder": str(owned.cdi_folder), "seen": seen}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("simulate", ["", "h100x8"])
def test_simulated_gpus_beside_another_service_are_kept_apart(tmp_path: Path, simulate: str) -> None:
    with owner.own_machine(config(tmp_path, simulate=simulate)):
        (tmp_path / "cdi" / "theirs.json").write_text("{}")
        done = subprocess.run(
            (sys.executable, "-c", _BESIDE, str(tmp_path)), capture_output=True, text=True, check=True
        )
        told = json.loads(done.stdout)
        assert told["seen"] == [".fairlead.lock", "mine.json"]
        assert f"pid {os.getpid()}" in told["note"]
        assert told["folder"].startswith("/proc/")
        assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == [".fairlead.lock", "theirs.json"]


def test_a_lock_of_an_older_fairlead_still_says_its_pid() -> None:
    found = heldlock.parse("4711\n")
    assert found is not None
    assert (found.pid, found.state) == (4711, "?")


@given(st.text(max_size=60))
def test_no_content_of_a_lock_breaks_its_reader(text: str) -> None:
    found = heldlock.parse(text)
    assert found is None or heldlock.parse(found.text()) is not None


def test_the_state_folder_is_closed_to_others_before_anything_lies_in_it(tmp_path: Path) -> None:
    place = tmp_path / "one"
    place.mkdir(mode=0o755)
    with owner.own_machine(config(tmp_path)):
        assert place.stat().st_mode & 0o777 == 0o700
