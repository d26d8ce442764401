"""Reads the manifests that `-f` names: files, folders, standard input, as kubectl does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors, files

_MOST_FILES: Final = 10_000
_ENDINGS: Final = (".yaml", ".yml", ".json")

file_option: Final = click.option(
    "-f",
    "--filename",
    "sources",
    multiple=True,
    metavar="FILE|FOLDER|-",
    help="manifest, folder of manifests, or - for standard input; again and again",
)
recursive_option: Final = click.option("-R", "--recursive", is_flag=True, help="folders below a folder, too")


def with_files(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-f` and `-R`."""
    return file_option(recursive_option(function))


def read(sources: Sequence[str], *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each manifest, in kubectl's order. Raises: RequestError."""
    if not sources:
        message = "no manifest is named"
        raise errors.RequestError(message, reason="FileRequired", hint="-f FILE, -f FOLDER, or -f - for standard input")
    for source in sources:
        if source == "-":
            yield "-", sys.stdin.buffer.read(files.LARGEST_BYTES)
        elif _is_folder(source):
            found = sorted(_below(Path(source), recursive=recursive))
            if not found:
                message = f"{errors.readable(source)} holds no manifest ({', '.join(_ENDINGS)})"
                raise errors.RequestError(
                    message, reason="FileRequired", hint="-R looks into the folders below it, too"
                )
            for one in found:
                yield str(one), _content(one)
        else:
            yield source, _content(Path(source))


def _is_folder(source: str) -> bool:
    try:
        return Path(source).is_dir()
    except (OSError, ValueError):  # no path at all: reading it says why
        return False


def _below(folder: Path, *, recursive: bool) -> Iterator[Path]:
    """Yield the manifests of a folder; links to folders are not followed. Raises: RequestError: too many files."""
    count = 0
    for here, folders, names in os.walk(folder):
        count += len(names) + len(folders)
        if count > _MOST_FILES:
            message = f"{errors.readable(str(folder))} holds more than {_MOST_FILES} files"
            raise errors.RequestError(message, reason="FileRequired", hint="name the folder of the manifests alone")
        if not recursive:
            folders.clear()
        for name in names:
            path = Path(here) / name
            if path.suffix in _ENDINGS and path.is_file():
                yield path


def _content(path: Path) -> bytes:
    try:
        return files.read_bounded(path)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        message = f"cannot read {errors.readable(str(path))}: {why}"
        raise errors.RequestError(message, reason="FileUnreadable", hint="name a readable manifest") from error
