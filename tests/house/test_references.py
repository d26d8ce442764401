"""Modules named in docstrings, comments and pages exist: a rename that forgets a page is noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from fairlead import settings

_NAMED: Final = re.compile(r"`([a-z_]+(?:[./][A-Za-z_]+)+)(?:\(\))?`")
# Names of others that look like ours: containers.conf, sysctl, an object's name in the API, a file.
_FOREIGN: Final = frozenset({"engine.cdi_spec_dirs", "kernel.panic", "kernel.pid_max", "node/NAME", "engine.md"})
_PACKAGES: Final = {"fairlead": "", "fairlead_cdi": "fairlead_cdi."}


def modules(root: Path) -> dict[str, str]:
    """Return the text of every module by its name below the package, folders with their `__init__`."""
    found = {}
    for package, prefix in _PACKAGES.items():
        for path in (root / "src" / package).rglob("*.py"):
            parts = path.relative_to(root / "src" / package).with_suffix("").parts
            found[prefix + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def exists(name: str, known: dict[str, str]) -> bool:
    """Return whether a name is a module, or what one defines."""
    parts = name.removesuffix(".py").replace("/", ".").split(".")
    for length in range(len(parts), 0, -1):
        text = known.get(".".join(parts[:length]))
        if text is not None:
            return length == len(parts) or re.search(rf"\b{parts[length]}\b", text) is not None
    return False


def stale(text: str, known: dict[str, str]) -> list[str]:
    """Return the names of rooms' modules in a text that do not exist."""
    rooms = {name.partition(".")[0] for name in known if "." in name}
    keys = {row.key for row in settings.rows()}
    return [
        name
        for name in _NAMED.findall(text)
        if re.split(r"[./]", name)[0] in rooms - {"settings"}
        and name not in keys | _FOREIGN
        and not re.search(r"[a-z][A-Z]", name)  # a value of the chart, `silicon.driverRoot`
        and not exists(name, known)
    ]


def test_every_module_that_is_named_exists(root: Path) -> None:
    known = modules(root)
    pages = [path for path in (root / "docs").rglob("*.md") if "reference" not in path.parts]
    files = [*(root / "src/fairlead").rglob("*.py"), *pages, root / "README.md", root / "CONTRIBUTING.md"]
    found = {str(path.relative_to(root)): stale(path.read_text(), known) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("see `plan.cdi.source`", 0),
        ("`plan.cdi.source.MODES` and `node/agent.py`", 0),
        ("`plan.place` decides", 1),
        ("`node/journal.py`", 1),
        ("`silicon.root` of the settings", 0),
    ],
)
def test_a_name_that_leads_nowhere_is_found(root: Path, text: str, count: int) -> None:
    assert len(stale(text, modules(root))) == count
