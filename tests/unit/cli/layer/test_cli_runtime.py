"""`fairlead runtime …` as an operator sees it: what is printed, written, and refused."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import click.testing
import pytest

from fairlead import command, errors
from fairlead.cli.core import invocation
from fairlead.cli.layer import runtime
from fairlead.node.engines import running
from fairlead.plan.engineconfig import commandline, table

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="launchers must belong to root")
MAIN = "version = 2 # two\n"


class Home:
    """A host's files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder, self.main = folder, folder / "config.toml"
        self.main.write_text(MAIN)

    def run(self, *arguments: object, engine: str = "containerd", config: Path | None = None) -> click.testing.Result:
        line = [str(arguments[0]), "--engine", engine, "--config", str(config or self.main), *map(str, arguments[1:])]
        return self.invoke(line)

    def invoke(self, line: list[str]) -> click.testing.Result:
        given = invocation.Invocation(env={"FAIRLEAD_STATE_FOLDER": str(self.folder / "state")})
        runner = click.testing.CliRunner()
        return runner.invoke(runtime.group, line, obj=given, catch_exceptions=False, standalone_mode=False)

    def configure(self, *arguments: object) -> click.testing.Result:
        return self.run("configure", "--folder", self.folder / "lib", "--engine-version", "1.7", *arguments)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_dry_run_prints_a_unified_diff_and_writes_nothing(home: Home) -> None:
    result = home.configure("--dry-run")
    lines = result.stdout.splitlines()
    assert lines[0:2] == ["--- /dev/null", f"+++ {home.folder}/conf.d/zz-fairlead.toml"]
    assert f'+imports = ["{home.folder}/conf.d/zz-fairlead*.toml"]' in lines
    assert [path.name for path in home.folder.iterdir()] == ["config.toml"]


def test_configure_writes_programs_first_and_says_what_is_next(home: Home) -> None:
    result = home.configure()
    assert result.stdout.splitlines() == [
        f"{home.folder}/conf.d/zz-fairlead.toml: written",
        f"{home.main}: changed",
        "next: systemctl restart containerd",
    ]
    program = home.folder / "lib" / "fairlead-runtime"
    assert os.access(program, os.X_OK)
    assert str(program) in (home.folder / "conf.d" / "zz-fairlead.toml").read_text()
    assert home.configure().stdout == "nothing to change\n"


def test_a_runtime_the_engine_stood_on_is_what_the_program_becomes(home: Home) -> None:
    home.main.write_text(
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\noptions.BinaryName = "/opt/r"\n'
    )
    home.configure()
    program = home.folder / "lib" / "containerd" / "fairlead-runtime"
    assert "runtimes=('/opt/r',)" in program.read_text()


def test_unconfigure_brings_it_back_and_may_be_repeated(home: Home) -> None:
    home.configure("--set-as-default")
    dry = home.run("unconfigure", "--dry-run").stdout
    assert f"--- {home.folder}/conf.d/zz-fairlead.toml\n+++ /dev/null\n" in dry
    assert home.run("unconfigure").stdout.splitlines() == [
        f"{home.main}: changed",
        f"{home.folder}/conf.d/zz-fairlead.toml: removed",
        "next: systemctl restart containerd",
    ]
    assert home.main.read_text() == MAIN
    assert home.run("unconfigure").stdout == "nothing to change\n"


def test_check_passes_and_fails_with_the_finding(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATH", str(home.folder))
    home.configure()
    assert home.run("check").stdout == f"containerd is configured ({home.main})\n"
    (home.folder / "conf.d" / "zz-fairlead.toml").unlink()
    with pytest.raises(errors.Conflict, match="1 findings"):
        home.run("check")


def test_where_the_running_engine_reads_another_file_nothing_is_written(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = commandline.Running(program="containerd", config="/etc/k0s/containerd.toml", pid=7)

    async def find(_: str) -> tuple[commandline.Running, ...]:
        return (other,)

    monkeypatch.setattr(running, "find", find)
    monkeypatch.setattr(command, "PATH", str(home.folder))
    usual = dataclasses.replace(table.ENGINES["containerd"], config=str(home.main))
    monkeypatch.setitem(table.ENGINES, "containerd", usual)
    line = ["configure", "--engine", "containerd", "--folder", str(home.folder / "lib"), "--engine-version", "1.7"]
    with pytest.raises(errors.Conflict, match=r"reads /etc/k0s/containerd\.toml"):
        home.invoke(line)
    assert [path.name for path in home.folder.iterdir()] == ["config.toml"]
    # A path that somebody chose is written, and the same is said.
    assert "/etc/k0s/containerd.toml" in home.configure().stderr
    with pytest.raises(errors.Conflict, match="1 findings"):
        home.run("check")


def test_containerd_1_6_is_refused_with_both_ways_out(home: Home) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        home.run("configure", "--engine-version", "1.6.36", "--folder", home.folder / "lib")
    assert errors.row_of(caught.value).exit == 6
    assert "--no-enable-cdi" in str(caught.value.hint)
    assert [path.name for path in home.folder.iterdir()] == ["config.toml"]


def test_a_release_must_be_one(home: Home) -> None:
    with pytest.raises(errors.Invalid, match='"new" is not a release of containerd'):
        home.run("configure", "--engine-version", "new")


def test_a_missing_line_end_is_shown_as_diff_does(home: Home) -> None:
    daemon = home.folder / "daemon.json"
    daemon.write_text('{"bip": "10.9.0.1/24"}')
    result = home.run("configure", "--dry-run", "--engine-version", "26.0", engine="docker", config=daemon)
    assert result.stdout.count("\\ No newline at end of file\n") == 2


def test_notes_go_to_standard_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATH", str(home.folder))
    monkeypatch.setenv("PATH", str(home.folder))
    daemon = home.folder / "daemon.json"
    daemon.write_text('{"runtimes": {"nvidia": {"path": "old"}}}')
    result = home.run("configure", "--dry-run", engine="docker", config=daemon)
    assert "note: the release of docker is not known" in result.stderr
    assert 'note: the handler "nvidia" was there already' in result.stderr


def links(*arguments: object) -> click.testing.Result:
    line = ["char-links", *map(str, arguments)]
    return click.testing.CliRunner().invoke(runtime.group, line, catch_exceptions=False, standalone_mode=False)


def test_links_are_told_and_made(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev" / "nvidia0", 0o20666, os.makedev(195, 0))
    (tmp_path / "dev" / "char").mkdir()
    (tmp_path / "dev" / "char" / "195:7").symlink_to("../nvidia7")
    told = "/dev/char/195:0 -> ../nvidia0\n/dev/char/195:7 removed\n"
    assert links("--root", tmp_path, "--dry-run").stdout == told
    assert not (tmp_path / "dev" / "char" / "195:0").is_symlink()
    assert links("--root", tmp_path).stdout == told
    assert links("--root", tmp_path).stdout == ""


def test_the_udev_rule_names_this_program_by_its_path() -> None:
    program = links("--udev-rule").stdout.split('RUN+="')[1].split()[0]
    assert program.startswith("/")


@pytest.mark.parametrize("word", ["x" * 70_000, "é" * 300, "/nonexistent", "."], ids=["long", "wide", "gone", "folder"])
def test_what_is_no_program_is_refused_in_a_line(home: Home, word: str) -> None:
    with pytest.raises(errors.Unavailable, match="is not there, or is no program") as caught:
        home.configure("--dry-run", "--gvisor", "--gvisor-program", word)
    assert len(caught.value.message) < 400


def test_a_folder_longer_than_any_path_is_refused(home: Home) -> None:
    with pytest.raises(errors.Invalid, match="cannot be laid over /dev") as caught:
        home.configure("--dry-run", "--gvisor", "--gvisor-program", "/bin/sh", "--gvisor-dev", "/" + "x" * 5000)
    assert len(caught.value.message) < 400
