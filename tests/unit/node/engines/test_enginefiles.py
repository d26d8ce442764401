"""An engine's files on a disk: configured, configured again, taken back; and what people did to them in between."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead import command, errors
from fairlead.node.engines import files as enginefiles
from fairlead.node.engines import records
from fairlead.plan.engineconfig.model import HEADER, Location, Request

CRI_2 = "io.containerd.grpc.v1.cri"
MAIN = f"""\
# the node's own
version = 2

[plugins."{CRI_2}"]
  sandbox_image = "pause:1" # pinned
"""
DAEMON = '{\n\t"log-driver": "json-file",\n\t"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}\n}\n'


class Host:
    """An engine's files in a folder, and our records beside them."""

    def __init__(self, folder: Path, engine: str = "containerd") -> None:
        self.folder, self.engine = folder, engine
        self.main = folder / ("daemon.json" if engine == "docker" else "config.toml")
        self.drop_in = folder / "conf.d" / "zz-fairlead.toml"
        self.recorded = records.ChangeRecords(folder / "state" / "engines")

    def place(self, **more: Any) -> Location:
        version = {"containerd": (1, 7), "docker": (26, 0), "crio": (1, 30), "podman": (5, 4)}[self.engine]
        return Location(**{"config": str(self.main), "version": version, **more})

    def configure(self, *, is_dry: bool = False, version: tuple[int, ...] = (), **request: Any) -> enginefiles.Outcome:
        place = self.place(**({"version": version} if version else {}))
        outcome, _ = enginefiles.configure(
            self.engine,
            place,
            Request(folder=str(self.folder / "lib"), **request),
            recorded=self.recorded,
            is_dry=is_dry,
        )
        return outcome

    def unconfigure(self, *, is_dry: bool = False) -> enginefiles.Outcome:
        return enginefiles.unconfigure(self.engine, str(self.main), recorded=self.recorded, is_dry=is_dry)

    def check(self, **more: Any) -> tuple[str, ...]:
        return enginefiles.review(self.engine, str(self.main), recorded=self.recorded, **more).findings

    def tree(self) -> dict[str, bytes]:
        state = self.folder / "state"
        paths = [path for path in self.folder.rglob("*") if state not in path.parents and path != state]
        return {str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else b"/" for path in paths}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.main.write_text(MAIN)
    return made


@pytest.fixture
def docker(tmp_path: Path) -> Host:
    made = Host(tmp_path, "docker")
    made.main.write_text(DAEMON)
    return made


@pytest.mark.parametrize("engine", ["containerd", "docker", "crio", "podman"])
@pytest.mark.parametrize("has_main", [True, False])
def test_taken_back_every_byte_is_what_it_was(tmp_path: Path, engine: str, has_main: bool) -> None:
    host = Host(tmp_path, engine)
    if has_main:
        host.main.write_text(DAEMON if engine == "docker" else MAIN if engine == "containerd" else "# mine\n")
    before = host.tree()
    assert host.configure(is_default=True).steps
    assert host.tree() != before
    assert host.unconfigure().steps
    assert host.tree() == before
    assert host.unconfigure().steps == ()


@pytest.mark.parametrize("engine", ["containerd", "docker", "crio", "podman"])
def test_a_second_time_changes_nothing(tmp_path: Path, engine: str) -> None:
    host = Host(tmp_path, engine)
    host.configure()
    after, times = host.tree(), {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")}
    assert host.configure().steps == ()
    assert host.tree() == after
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")} == times


def test_other_requests_replace_earlier_ones(host: Host) -> None:
    host.configure(is_default=True, name="gpu", has_kata=True)
    host.configure()
    other = Host(host.folder)
    text = other.drop_in.read_text()
    assert "gpu]" not in text
    assert "kata" not in text
    assert "default_runtime_name" not in text


def test_a_request_for_another_drop_in_moves_it(host: Host, tmp_path: Path) -> None:
    host.configure()
    request = Request(folder="/lib")
    enginefiles.configure("containerd", host.place(drop_in=str(tmp_path / "own.toml")), request, recorded=host.recorded)
    assert not host.drop_in.exists()
    assert "zz-fairlead" not in host.main.read_text()
    assert f'imports = ["{tmp_path}/own*.toml"]' in host.main.read_text()


def test_dry_runs_touch_nothing(host: Host) -> None:
    before = host.tree()
    steps = host.configure(is_dry=True).steps
    assert [Path(step.path).name for step in steps] == ["zz-fairlead.toml", "config.toml"]
    assert host.tree() == before
    assert not (host.folder / "state").exists()
    host.configure()
    after = host.tree()
    assert [step.after for step in host.unconfigure(is_dry=True).steps] == [MAIN.encode(), None]
    assert host.tree() == after


def test_mode_owner_and_links_of_a_file_stay(host: Host) -> None:
    real = host.folder / "elsewhere.toml"
    host.main.rename(real)
    host.main.symlink_to("elsewhere.toml")
    real.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(real, 1234, 4321)
    before = real.stat()
    host.configure()
    assert host.main.is_symlink()
    assert b"imports" in real.read_bytes()
    host.unconfigure()
    after = real.stat()
    assert host.main.is_symlink()
    assert real.read_text() == MAIN
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_new_files_can_be_read_by_all_and_written_by_their_owner(host: Host) -> None:
    host.configure()
    assert stat.S_IMODE(host.drop_in.stat().st_mode) == 0o644
    assert stat.S_IMODE(host.drop_in.parent.stat().st_mode) & 0o022 == 0
    record = next((host.folder / "state" / "engines").glob("*.json"))
    assert stat.S_IMODE(record.stat().st_mode) == 0o600


def test_what_somebody_added_since_stays_and_ours_goes(host: Host) -> None:
    host.configure()
    edited = host.main.read_text().replace("pause:1", "pause:2").replace("imports = [", 'imports = ["/mine/*.toml", ')
    host.main.write_text(edited + "# more\n")
    host.unconfigure()
    expected = MAIN.replace("pause:1", "pause:2").replace("version = 2\n", 'version = 2\nimports = ["/mine/*.toml"]\n')
    assert host.main.read_text() == expected + "# more\n"
    assert not host.drop_in.exists()


def test_members_somebody_changed_since_stay_and_ours_go(docker: Host) -> None:
    docker.configure(is_default=True)
    document = json.loads(docker.main.read_text())
    document["runtimes"]["mine"] = {"path": "/mine"}
    document["default-runtime"] = "mine"
    document["features"]["buildkit"] = True
    docker.main.write_text(json.dumps(document))
    docker.unconfigure()
    assert json.loads(docker.main.read_text()) == {
        "log-driver": "json-file",
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "mine": {"path": "/mine"}},
        "default-runtime": "mine",
        "features": {"buildkit": True},
    }


def test_a_file_we_made_and_somebody_filled_keeps_their_part(tmp_path: Path) -> None:
    docker = Host(tmp_path, "docker")
    docker.configure()
    document = json.loads(docker.main.read_text())
    docker.main.write_text(json.dumps({**document, "bip": "10.9.0.1/24"}))
    docker.unconfigure()
    assert json.loads(docker.main.read_text()) == {"bip": "10.9.0.1/24"}


def test_a_file_we_made_and_somebody_wrote_out_again_goes(tmp_path: Path) -> None:
    docker = Host(tmp_path, "docker")
    docker.configure()
    docker.main.write_text(json.dumps(json.loads(docker.main.read_text())))
    docker.unconfigure()
    assert not docker.main.exists()


def test_a_main_file_we_made_and_an_installer_wrote_over_is_the_installer_s(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.configure()
    host.main.write_text(MAIN)
    assert host.configure().steps
    assert "pause:1" in host.main.read_text()
    assert "pause:1" in host.drop_in.read_text()
    host.unconfigure()
    assert host.main.read_text() == MAIN


def test_a_drop_in_somebody_edited_is_kept_before_it_goes(host: Host) -> None:
    host.configure()
    host.drop_in.write_text(host.drop_in.read_text() + "# precious\n")
    outcome = host.configure(is_default=True)
    kept = [path for path in (host.folder / "state" / "engines").iterdir() if "edited" in path.name]
    assert len(kept) == 1
    assert "# precious" in kept[0].read_text()
    assert str(kept[0]) in outcome.notes[-1]
    assert "# precious" not in host.drop_in.read_text()


def test_a_file_of_somebody_s_in_our_place_is_refused(host: Host) -> None:
    host.drop_in.parent.mkdir()
    host.drop_in.write_text("version = 2\n")
    with pytest.raises(errors.Conflict, match="was not written by fairlead"):
        host.configure()
    assert host.drop_in.read_text() == "version = 2\n"
    assert host.main.read_text() == MAIN


def test_without_its_record_our_drop_in_is_known_by_its_header(host: Host) -> None:
    host.configure()
    after = host.tree()
    next((host.folder / "state" / "engines").glob("*.json")).unlink()
    assert host.drop_in.read_text().startswith(HEADER)
    assert host.configure().steps == ()
    assert host.tree() == after


def test_a_drop_in_that_was_deleted_comes_back(host: Host) -> None:
    host.configure()
    host.drop_in.unlink()
    assert [Path(step.path) for step in host.configure().steps] == [host.drop_in]


@pytest.mark.parametrize("written", [0, 1])
def test_a_crash_on_the_way_is_mended_by_either_command(
    host: Host, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    class Crash(Exception):
        """The power went."""

    original = enginefiles._write

    def crash(steps: tuple[enginefiles.Step, ...]) -> None:
        original(steps[:written])
        raise Crash

    before = host.tree()
    monkeypatch.setattr(enginefiles, "_write", crash)
    with pytest.raises(Crash):
        host.configure()
    monkeypatch.undo()
    host.unconfigure()
    assert host.tree() == before
    monkeypatch.setattr(enginefiles, "_write", crash)
    with pytest.raises(Crash):
        host.configure()
    monkeypatch.undo()
    host.configure()
    assert host.check() == (f"{host.folder}/lib/fairlead-runtime: the handler's program is not there",)
    host.unconfigure()
    assert host.tree() == before


def test_a_check_tells_what_went_stale_and_who_did_it(host: Host) -> None:
    with pytest.raises(errors.NotFound, match="is not configured by fairlead"):
        host.check()
    host.configure()
    program = host.folder / "lib" / "fairlead-runtime"
    program.parent.mkdir()
    program.touch()
    assert host.check() == ()
    host.main.write_text(host.main.read_text().replace("pause:1", "pause:2"))
    assert host.check() == (f"{host.drop_in}: the files it was made from have changed",)
    host.configure()
    assert host.check() == ()
    host.drop_in.write_text(HEADER)
    assert host.check() == (f"{host.drop_in}: it is not as it was written",)
    host.configure()
    assert host.check(version=(2, 2)) == (f"{host.drop_in}: the files it was made from have changed",)
    with pytest.raises(errors.Unavailable, match="does not inject CDI"):
        host.check(version=(1, 6))


def test_a_record_of_before_the_request_had_its_name_is_read(host: Host) -> None:
    host.configure()
    (path,) = host.recorded.folder.glob("*.json")
    path.write_text(path.read_text().replace('"request"', '"wish"'))
    host.unconfigure()
    assert host.main.read_text() == MAIN


def test_a_record_that_cannot_be_read_stops_everything(host: Host) -> None:
    host.configure()
    after = host.tree()
    record = next((host.folder / "state" / "engines").glob("*.json"))
    for text in ("{", "[]", '{"schema": 9}', record.read_text().replace('"digest"', '"digit"')):
        record.write_text(text)
        for act in (host.configure, host.unconfigure, host.check):
            with pytest.raises(errors.ProtocolError, match="cannot be read"):
                act()
    assert host.tree() == after


def test_a_file_that_broke_since_is_named_and_left_alone(host: Host) -> None:
    host.configure()
    host.main.write_text("version = \n")
    with pytest.raises(errors.ProtocolError, match=r"config\.toml:1:11: not TOML"):
        host.unconfigure()
    assert host.main.read_text() == "version = \n"
    assert host.drop_in.exists()


def test_a_folder_where_a_file_is_wanted_is_told(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "conf.d").write_text("no folder")
    with pytest.raises(errors.Unavailable, match="cannot make"):
        host.configure()


async def version(engine: str) -> tuple[int, ...] | None:
    release = await enginefiles.ask_release(engine)
    return None if release is None else release.version


async def test_the_installed_podman_is_asked_for_its_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await version("podman") is None
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho podman version 5.4.2\n")
    program.chmod(0o755)
    assert await version("podman") == (5, 4, 2)
    program.write_text("#!/bin/sh\nexit 3\n")
    assert await version("podman") is None


class Interleaved(RuleBasedStateMachine):
    """We and the operator take turns; the operator's part of the file is always what the operator made it."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(prefix="fl-engine-")
        self.host = Host(Path(self.temporary.name))
        self.theirs: list[str] = []
        self.is_configured = False

    def teardown(self) -> None:
        self.temporary.cleanup()

    @initialize(lines=st.lists(st.sampled_from(["# first", "root = '/x'"]), unique=True))
    def begin(self, lines: list[str]) -> None:
        self.theirs = ["version = 2", *lines]
        self.host.main.write_text("\n".join(self.theirs) + "\n")

    @rule(is_default=st.booleans(), alias=st.sampled_from(["", "nvidia"]), version=st.sampled_from([(1, 7), (2, 2)]))
    def configure(self, is_default: bool, alias: str, version: tuple[int, ...]) -> None:
        self.host.configure(is_default=is_default, alias=alias, version=version)
        assert self.host.configure(is_default=is_default, alias=alias, version=version).steps == ()
        self.is_configured = True

    @rule(number=st.integers(0, 9))
    def operator_adds(self, number: int) -> None:
        line = f"# note {number}"
        with self.host.main.open("a") as file:
            file.write(f"{line}\n")
        self.theirs.append(line)

    @precondition(lambda self: self.is_configured)
    @rule()
    def operator_deletes_our_drop_in(self) -> None:
        self.host.drop_in.unlink(missing_ok=True)

    @rule()
    def unconfigure(self) -> None:
        self.host.unconfigure()
        self.is_configured = False

    @invariant()
    def only_our_line_is_more(self) -> None:
        if not self.theirs:
            return
        found = self.host.main.read_text().splitlines()
        ours = [line for line in found if line.startswith("imports")]
        assert [line for line in found if line not in ours] == self.theirs
        assert len(ours) == self.is_configured
        if not self.is_configured:
            assert set(self.host.tree()) == {"config.toml"}


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


async def test_an_engine_in_an_unusual_folder_is_found_on_the_askers_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "dockerd"
    program.write_text("#!/bin/sh\necho 'Docker version 20.10.24, build 297e128'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert await version("docker") == (20, 10, 24)
