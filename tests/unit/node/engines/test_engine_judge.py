"""Engines that run are found in /proc, and containerd's own program is asked what it makes of files."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from fairlead import command, errors
from fairlead.node.engines import files as enginefiles
from fairlead.node.engines import judge, records, running
from fairlead.plan.engineconfig import commandline, table
from fairlead.plan.engineconfig.model import Location, Proposal, Request


def process(proc: Path, pid: int, *argv: str, root: Path = Path("/"), pids: str = "pid:[1]") -> None:
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in argv))
    (folder / "ns" / "pid").symlink_to(pids)
    (folder / "root").symlink_to(root)
    (folder / "cwd").symlink_to("/srv")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path / "proc", 1, "/sbin/init")
    (tmp_path / "proc" / "self").symlink_to("1")
    return tmp_path / "proc"


def test_an_engine_that_runs_is_found_with_the_file_it_reads(proc: Path) -> None:
    process(proc, 20, "containerd", "-c", "k3s.toml")
    process(proc, 3, "/usr/bin/containerd")
    process(proc, 30, "containerd", "config", "dump")
    found = running.find_processes("containerd", proc=proc)
    assert [(one.pid, one.config) for one in found] == [
        (3, table.ENGINES["containerd"].config),
        (20, "/srv/k3s.toml"),
    ]


def test_a_process_that_has_the_kernel_show_a_terabyte_as_its_words_costs_nothing(proc: Path) -> None:
    process(proc, 3, "/usr/bin/containerd")
    process(proc, 9, "x")
    os.truncate(proc / "9/cmdline", 1 << 40)
    assert [one.pid for one in running.find_processes("containerd", proc=proc)] == [3]


def test_an_engine_of_a_container_is_another_s(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "etc").mkdir(parents=True)
    process(proc, 20, "containerd", "-c", "/x", root=tmp_path / "other")
    process(proc, 21, "containerd", "-c", "/x", pids="pid:[2]")
    (proc / "22").mkdir()  # it has ended
    assert running.find_processes("containerd", proc=proc) == ()


def test_a_link_to_our_file_is_our_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("")
    (tmp_path / "b.toml").symlink_to("a.toml")
    one = commandline.Running(program="containerd", config=str(tmp_path / "b.toml"))
    assert running.same_file(one, str(tmp_path / "a.toml")).config == str(tmp_path / "a.toml")
    assert running.same_file(one, str(tmp_path / "none")) == one


PROGRAM = """\
#!{python}
import pathlib, sys, tomllib
if sys.argv[1:] == ["--version"]:
    print("containerd example v2.2.1")
    with open({seen!r} + "/../asked", "a") as file:
        file.write("once ")
    raise SystemExit
assert sys.argv[1] == "--config" and sys.argv[3:] == ["config", "dump"]
folder = pathlib.Path({seen!r})
main = pathlib.Path(sys.argv[2]).read_text()
for number, path in enumerate([sys.argv[2], *tomllib.loads(main).get("imports", [])]):
    if "*" not in path:
        (folder / str(number)).write_text(pathlib.Path(path).read_text())
{rest}
"""
DUMP = "print(pathlib.Path(tomllib.loads(main)['imports'][-1]).read_text())"
REFUSED = "sys.exit('containerd: drop-in config version 4 higher than root config version 2')"


class Containerd:
    """A program in containerd's place, and the host that it is asked about."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.program = folder, folder / "seen", folder / "containerd"
        self.seen.mkdir()
        (folder / "conf.d").mkdir()
        (folder / "conf.d" / "a.toml").write_text("version = 3\n")
        (folder / "config.toml").write_text('version = 3\nimports = ["conf.d/*.toml"]\n')
        self.recorded = records.ChangeRecords(folder / "state" / "engines")
        self.place = Location(config=str(folder / "config.toml"), version=(2, 2, 1))
        self.request = Request(folder=str(folder))

    def becomes(self, rest: str) -> None:
        self.program.write_text(PROGRAM.format(python=sys.executable, seen=str(self.seen), rest=rest))
        self.program.chmod(0o755)

    async def ask(self, version: tuple[int, ...] = (2, 2, 1)) -> tuple[str, ...]:
        place = dataclasses.replace(self.place, version=version)
        _, proposal = enginefiles.configure("containerd", place, self.request, recorded=self.recorded, is_dry=True)
        release = await enginefiles.ask_release("containerd", program=str(self.program))
        return await judge.ask(release, place, self.request, proposal)


@pytest.fixture
def containerd(tmp_path: Path) -> Containerd:
    return Containerd(tmp_path)


async def test_containerd_is_asked_about_all_its_files_before_one_is_written(containerd: Containerd) -> None:
    containerd.becomes(DUMP)
    assert await containerd.ask() == ()
    assert sorted(path.name for path in containerd.seen.iterdir()) == ["0", "1", "2"]
    assert "fairlead-runtime" in (containerd.seen / "2").read_text()
    assert [path.name for path in (containerd.folder / "conf.d").iterdir()] == ["a.toml"]


async def test_what_containerd_does_not_make_of_them_is_returned(containerd: Containerd) -> None:
    containerd.becomes("print('version = 3')")
    assert 'finds no handler "fairlead" of ours' in (await containerd.ask())[0]
    containerd.becomes(REFUSED)
    assert await containerd.ask() == (
        "containerd itself refuses these files: containerd: drop-in config version 4 higher than root config version 2",
    )


async def test_a_program_of_another_release_is_not_asked(containerd: Containerd) -> None:
    containerd.becomes(REFUSED)
    assert await containerd.ask((2, 3, 5)) == ()


async def test_what_stands_is_judged_as_it_stands(containerd: Containerd, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = str(containerd.folder / "conf.d" / "zz-fairlead.toml")
    containerd.becomes(f"print(pathlib.Path({ours!r}).read_text())")
    monkeypatch.setenv("PATH", str(containerd.folder))
    (containerd.folder / "fairlead-runtime").write_text("")
    enginefiles.configure("containerd", containerd.place, containerd.request, recorded=containerd.recorded)
    assert (
        await judge.judge_written("containerd", containerd.place.config, recorded=containerd.recorded)
    ).findings == ()
    assert (containerd.folder / "asked").read_text() == "once "
    containerd.becomes(REFUSED)
    verdicts = await judge.judge_all(containerd.recorded)
    assert "refuses these files" in verdicts["containerd", containerd.place.config].findings[0]


async def test_a_record_whose_files_broke_is_a_finding(containerd: Containerd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATH", str(containerd.seen))
    monkeypatch.setenv("PATH", str(containerd.seen))
    enginefiles.configure("containerd", containerd.place, containerd.request, recorded=containerd.recorded)
    Path(containerd.place.config).write_text("version = \n")
    verdicts = await judge.judge_all(containerd.recorded)
    assert "not TOML" in verdicts["containerd", containerd.place.config].findings[0]


def test_a_drop_in_that_is_not_ours_is_not_taken_back(containerd: Containerd) -> None:
    enginefiles.configure("containerd", containerd.place, containerd.request, recorded=containerd.recorded)
    config, ours = containerd.place.config, str(containerd.folder / "conf.d" / "zz-fairlead.toml")
    with pytest.raises(errors.NotFound, match=r"zz-fairlead\.toml was$"):
        enginefiles.unconfigure("containerd", config, recorded=containerd.recorded, drop_in="/etc/other.toml")
    assert enginefiles.unconfigure("containerd", config, recorded=containerd.recorded, drop_in=ours).steps


PODMAN = """\
#!{python}
import sys
words = sys.argv[1:]
name = words[1] if words[0] == "--runtime" else ""
assert words[2 if name else 0:][0] == "info"
known = {known!r}
if name not in known:
    sys.exit(f'Error: default OCI runtime "{{name}}" not found: invalid argument')
print(known[name])
"""


def _podman(folder: Path, **known: str) -> str:
    program = folder / "podman"
    program.write_text(
        PODMAN.format(python=sys.executable, known={name.rstrip("_"): path for name, path in known.items()})
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("known", "is_default", "said"),
    [
        ({"fairlead": "/o/fairlead-runtime", "nvidia": "/o/fairlead-runtime"}, False, ()),
        ({"fairlead": "/o/fairlead-runtime", "nvidia": "/o/fairlead-runtime", "_": "/o/fairlead-runtime"}, True, ()),
        ({"fairlead": "/o/fairlead-runtime"}, False, ('podman itself refuses the handler "nvidia"',)),
        (
            {"fairlead": "/o/fairlead-runtime", "nvidia": "/usr/bin/nvidia-container-runtime"},
            False,
            ('podman starts /usr/bin/nvidia-container-runtime for the handler "nvidia", and not /o/fairlead-runtime',),
        ),
        (
            {"fairlead": "/o/fairlead-runtime", "nvidia": "/o/fairlead-runtime", "_": "/usr/bin/crun"},
            True,
            ("podman starts /usr/bin/crun for containers that name no handler, and not /o/fairlead-runtime",),
        ),
    ],
)
async def test_podman_says_what_it_starts_for_each_handler(
    tmp_path: Path, known: dict[str, str], said: tuple[str, ...], *, is_default: bool
) -> None:
    request = Request(folder="/o", is_default=is_default)
    proposal = Proposal(program="/o/fairlead-runtime", runtimes=(), edits=())
    found = await judge.ask_podman(_podman(tmp_path, **known), request, proposal)
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))
