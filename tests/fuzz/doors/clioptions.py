"""Every option of every command, by the command line's own tables: what is added there is fed here.

A line has one option with one value, and a plain word for each argument that the command must have. It is carried out
against a live service; commands that would not end, or change more than their own folder, are read and not carried
out: types, choices and checks of their options, and for processes the settings that they would start with.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from fairlead import errors, settings
from fairlead.cli import main
from tests.fuzz import hostile
from tests.fuzz.doors import cli
from tests.fuzz.harness import Case, Door, Feed

READ_ONLY: Final = {
    ("up",): "runs until it is stopped",
    ("agent",): "runs until it is stopped",
    ("api",): "runs until it is stopped",
    ("controller",): "runs until it is stopped",
    ("kubelet",): "runs until it is stopped",
    ("scheduler",): "runs until it is stopped",
    ("down",): "ends the service that is asked",
    ("service",): "changes the machine's units",
    ("withdraw",): "changes a cluster",
    ("import",): "asks another engine",
    ("cdi", "watch"): "runs until it is stopped",
    ("cdi", "prepare"): "writes the cache of the machine's own runtime",
    ("port-forward",): "runs until it is stopped",
}
"""Commands, by how their path begins, that are read and not carried out, and why."""
_FIRST: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {("stats",): ("--no-stream",), ("top",): ("--no-stream",)}
)
"""What a command has before the option, without which it would not end."""
_ARGUMENTS: Final = MappingProxyType({"engine": "podman", "profile": "h100x8"})
WRITES: Final = frozenset({"--output", "--output-file"})
"""Options that name a file to write: an absolute one is written where it is, which is what they are for."""
_PLAIN: Final = "none"
_APART: Final = 10
"""Options of one kind stand in a dozen commands: each value reaches some of them."""


@dataclass(frozen=True, slots=True)
class Fed:
    """One option of one command."""

    path: tuple[str, ...]
    option: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def label(self) -> str:
        """How a message names it."""
        return " ".join((*self.path, self.option))

    def line(self, value: str) -> list[str]:
        """Return the words of a line; the value is joined to the option, so that it is never one itself."""
        joined = [f"{self.option}={value}"] if self.option.startswith("--") else [self.option, value]
        return [*self.path, *self.before, *joined, *self.after]


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is no group, by its path."""
    yield from _below(main.root, (), click.Context(main.root, info_name="fairlead", obj={}))


def _below(
    command: click.Command, path: tuple[str, ...], ctx: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None, name
        yield from _below(found, (*path, name), click.Context(found, info_name=name, parent=ctx))


def options() -> tuple[Fed, ...]:
    """Return every option that takes a value: those of the program itself, and of every command."""
    found = [Fed((), one.opts[-1], (), ("gpus",)) for one in main.root.params if _has_value(one)]
    for path, command in commands():
        words = tuple(_words(command))
        named = (one.opts[-1] for one in command.params if _has_value(one))
        found += [Fed(path, name, _FIRST.get(path, ()), words) for name in named]
    return tuple(found)


def _has_value(one: click.Parameter) -> bool:
    return isinstance(one, click.Option) and not one.is_flag and not one.count


def _words(command: click.Command) -> Iterator[str]:
    for one in command.params:
        if isinstance(one, click.Argument) and one.required:
            plain = next(iter(one.type.choices)) if isinstance(one.type, click.Choice) else _PLAIN
            for _ in range(max(1, one.nargs)):
                yield _ARGUMENTS.get(one.name or "", str(plain))


def is_read(path: tuple[str, ...]) -> bool:
    """Return whether a command is read and not carried out."""
    return any(path[: len(one)] == one for one in READ_ONLY)


def cases(*, every: bool) -> list[Case]:
    """Return the lines, the same at every run.

    Args: every: each option with one value of ten, so that all are fed to options of one kind; else with one.
    """
    values = [one for one in hostile.TEXTS if "\0" not in str(one.value)]
    random.Random("options").shuffle(values)
    found = []
    for number, fed in enumerate(options()):
        for one in values[number % _APART :: _APART] if every else [values[number % len(values)]]:
            if fed.option in WRITES and str(one.value).startswith("/"):
                continue
            data = json.dumps(fed.line(str(one.value))).encode()
            found.append(Case(f"{fed.label} = {one.name}", lambda data=data: data))  # type: ignore[misc]
    return found


@contextlib.asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[Feed]:
    # A relative path is one below the folder.
    async with cli.opened(folder) as feed:
        (folder / "work").mkdir()

        async def either(data: bytes) -> None:
            words = cli.argv(data)
            with contextlib.chdir(folder / "work"):
                await one_line(data, words)

        async def one_line(data: bytes, words: list[str]) -> None:
            path = next((words[:size] for size in range(1, len(words)) if is_read(tuple(words[:size]))), None)
            if path is None:
                await feed(data)
            else:
                read(words, {"HOME": str(folder), "FAIRLEAD_STATE_FOLDER": str(folder / "state")})

        yield either


def read(words: list[str], env: Mapping[str, str]) -> None:
    """Read a line as its command does, and carry nothing out. Raises: Refused."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            _parse(main.root, words, click.Context(main.root, info_name="fairlead", obj=env))
    except click.ClickException as error:
        raise cli.Refused(error.format_message()[:300]) from error  # `main` escapes and shortens it
    except errors.FairleadError as error:
        raise cli.Refused(error.message) from error
    cli.check_output(said.getvalue())


def _parse(command: click.Command, words: list[str], parent: click.Context) -> None:
    while isinstance(command, click.Group):
        found = command.get_command(parent, words[0])
        assert found is not None
        command, words = found, words[1:]
    with command.make_context(command.name, words, parent=parent) as ctx:
        given = {row.key: ctx.params.get(f"{row.group}_{row.name}") for row in settings.rows()}
        settings.load(flags={key: one for key, one in given.items() if one is not None}, env={}, file=None)


DOOR: Final = Door(
    name="options of every command",
    opened=_opened,
    refusals=(cli.Refused,),
    programs=("podman", "containerd", "systemctl", "docker", "crio"),
)
