"""The map leads somewhere: its paths exist, every room is on it, and its tasks name few files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PAGE = "docs/design/map.md"
_PATH = re.compile(r"`((?:src|tests|docs|tools)/[\w./-]+)`")
_ANY_PATH = re.compile(r"`(\w+(?:/[\w.-]+)+/?)`")
"""Also such as leave `src/fairlead/` out, where a folder of a room is spoken of."""
_BARE = re.compile(r"`(\w+\.(?:py|toml|md|json))`")
"""A file named without its folder is one more to edit."""
_TASKS = 14
_MOST_FILES = 4


def _page(root: Path) -> str:
    return (root / _PAGE).read_text()


def _tasks(text: str) -> list[list[str]]:
    rows = text.partition("| to add |")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| a")]


def test_every_path_of_the_map_exists(root: Path) -> None:
    named = _PATH.findall(_page(root))
    assert len(named) > 20
    assert [path for path in named if not (root / path).exists()] == []
    spoken = _ANY_PATH.findall(_page(root))
    assert [one for one in spoken if not (root / one).exists() and not (root / "src" / "fairlead" / one).exists()] == []


def _files(where: str) -> set[str]:
    """Return the places below `src` that a task names; a folder is one, where something is made."""
    return {path for path in _PATH.findall(where) if path.startswith("src/")} | set(_BARE.findall(where))


def test_no_task_of_the_map_names_more_than_four_files(root: Path) -> None:
    tasks = _tasks(_page(root))
    assert len(tasks) == _TASKS
    assert {task: _files(where) for task, where, _ in tasks if not 1 <= len(_files(where)) <= _MOST_FILES} == {}


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("`src/fairlead/model/gpu.py` with `view.py`, `make docs`", {"src/fairlead/model/gpu.py", "view.py"}),
        ("a module in `src/fairlead/cli/`; a line of `tests/fuzz/doors/cli.py`", {"src/fairlead/cli/"}),
        ("`src/fairlead/errors.py`: `FAULTS`, and `src/fairlead/errors.py` again", {"src/fairlead/errors.py"}),
    ],
)
def test_files_are_counted_whether_or_not_their_folder_is_named(where: str, files: set[str]) -> None:
    assert _files(where) == files


def test_every_task_names_its_test(root: Path) -> None:
    assert [task for task, _, test in _tasks(_page(root)) if not _PATH.findall(test)] == []


def test_every_room_is_on_the_map(root: Path) -> None:
    rooms = _page(root).partition("## Rooms")[2].partition("## Import law")[0]
    package = root / "src" / "fairlead"
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {room for room in there - {"__init__"} if f"`{room}`" not in rooms} == set()
