"""The map leads somewhere: its paths exist, every room is on it, and every task names its test."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = "docs/design/map.md"
_PATH = re.compile(r"`((?:src|tests|docs|tools)/[\w./-]+)`")
_ANY_PATH = re.compile(r"`(\w+(?:/[\w.-]+)+/?)`")
"""Also such as leave `src/fairlead/` out, where a folder of a room is spoken of."""


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


def test_every_task_names_its_test(root: Path) -> None:
    tasks = _tasks(_page(root))
    assert len(tasks) > 15
    assert [task for task, _, test in tasks if not _PATH.findall(test)] == []


def test_every_room_is_on_the_map(root: Path) -> None:
    rooms = _page(root).partition("## Rooms")[2].partition("## Import law")[0]
    package = root / "src" / "fairlead"
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {room for room in there - {"__init__"} if f"`{room}`" not in rooms} == set()
