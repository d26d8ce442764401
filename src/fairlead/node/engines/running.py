"""Finds the engines that run on this node, by /proc, and where none runs, what systemd's unit says of its start.

An engine counts if it sees the file system that we write to: containers bring engines of their own (kind's nodes,
docker in docker), and those read other files of the same name. So the folder of the usual main file must be the same
one in its root as in ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import shlex
from pathlib import Path
from typing import Final

from fairlead import command, errors, files
from fairlead.plan.engineconfig import commandline, table

_UNIT_S: Final = 5.0
_LARGEST: Final = 1 << 16
_ARGV: Final = re.compile(r"argv\[\]=(.*?) ;")


async def find(engine: str, *, proc: Path = Path("/proc")) -> tuple[commandline.Running, ...]:
    """Return the engines of a kind that run here, else the one that its unit would start."""
    if engine not in commandline.PROGRAMS:
        return ()
    found = await asyncio.to_thread(find_processes, engine, proc=proc)
    return found or await _read_unit(engine)


def find_processes(engine: str, *, proc: Path = Path("/proc")) -> tuple[commandline.Running, ...]:
    """Return the engines of a kind that run and see our file system, ordered by pid."""
    usual = table.ENGINES[engine].config
    found = []
    for folder in sorted((one for one in proc.iterdir() if one.name.isdigit()), key=lambda one: int(one.name)):
        try:
            argv = [os.fsdecode(word) for word in files.read_beginning(folder / "cmdline").split(b"\0")[:-1]]
            # k3s starts a program of many names: the first word says which it is, /proc/PID/exe does not.
            cwd = str((folder / "cwd").readlink()) if argv else ""
            one = commandline.parse(engine, argv, usual=usual, folder=cwd, pid=int(folder.name))
            if one is not None and _sees_ours(folder, Path(usual).parent, proc):
                found.append(one)
        except OSError:  # it ended, or is not ours to look into
            continue
    return tuple(found)


def _sees_ours(process: Path, folder: Path, proc: Path) -> bool:
    if (process / "ns" / "pid").readlink() != (proc / "self" / "ns" / "pid").readlink():
        return False
    for one in (folder, *folder.parents):
        theirs, ours = (_identity(root / one.relative_to("/")) for root in (process / "root", Path("/")))
        if theirs or ours:
            return theirs == ours
    return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


async def _read_unit(engine: str) -> tuple[commandline.Running, ...]:
    argv = ("systemctl", "show", "--property=ExecStart", "--value", f"{engine}.service")
    try:
        done = await command.run(argv, env=command.base_env(), timeout_s=_UNIT_S, largest=_LARGEST)
    except errors.Unavailable:
        return ()
    found = _ARGV.search(done.stdout.decode(errors="replace")) if done.code == 0 else None
    try:
        words = shlex.split(found[1]) if found else []
    except ValueError:
        return ()
    one = commandline.parse(engine, words, usual=table.ENGINES[engine].config)
    return (one,) if one else ()


def same_file(one: commandline.Running, config: str) -> commandline.Running:
    """Return the engine under the name by which we call its file, if both names lead to one file."""
    try:
        is_same = Path(one.config).samefile(config)
    except OSError:
        is_same = False
    return dataclasses.replace(one, config=config) if is_same else one
