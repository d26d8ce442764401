"""Every right that the code of a component uses is in its table, which is held to the chart's role beside this file.

Calls of a store are read from the source: those that name their kind, by whatever name the module has for it. What an
object is written by (`update`, `update_status`) reads it first, so each right to update needs the one to get.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.store.kubernetes import rights
from fairlead.store.kubernetes.rights import Right

SOURCE = Path(fairlead.__file__).parent
USES = {
    "get": ("get",),
    "list": ("list",),
    "watch": ("watch",),
    "delete": ("delete",),
    "change": ("get", "update"),
    "change_status": ("get", "update/status"),
}
TABLES = {
    "control/scheduler": rights.SCHEDULER,
    "control/node/gpudevice.py": rights.CONTROLLER,
    "control/node/gpulease.py": rights.CONTROLLER,
    "control/tenancy": (*rights.CONTROLLER, *rights.TENANCIES),
}
OPTIONAL = {"NodeNetwork"}
"""Kinds that every role of a cluster may read, and that are not the component's own."""


def used(path: Path) -> Iterator[tuple[str, type[Any], int]]:
    """Yield the verb, the kind and the line of each call of a store in a file that names its kind."""
    module = importlib.import_module(".".join(("fairlead", *path.relative_to(SOURCE).with_suffix("").parts)))
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in USES:
            continue
        of = ast.unparse(call.func.value)
        arguments = call.args[1:] if of == "retry" else call.args if of.endswith("store") else []
        if not arguments:
            continue
        try:
            kind = eval(ast.unparse(arguments[0]), vars(module))  # noqa: S307 (a name of our own module)
        except NameError:  # a variable: the kinds that it stands for are not written there
            continue
        if isinstance(kind, type) and hasattr(kind, "PLURAL"):
            yield from ((verb, kind, call.lineno) for verb in USES[call.func.attr])


def files(place: str) -> list[Path]:
    root = SOURCE / place
    return [root] if root.is_file() else sorted(root.rglob("*.py"))


@pytest.mark.parametrize("place", TABLES)
def test_what_a_component_s_code_asks_of_the_api_server_is_in_its_table(place: str) -> None:
    granted = {(one.verb, one.full, one.group) for one in TABLES[place]}
    lacking, seen = [], 0
    for path in files(place):
        for use, kind, line in used(path):
            seen += 1
            verb, _, part = use.partition("/")
            group = kind.API_VERSION.rpartition("/")[0]
            resource = f"{kind.PLURAL}/{part}" if part else kind.PLURAL
            if (verb, resource, group) not in granted and kind.__name__ not in OPTIONAL:
                lacking.append(f"{path.relative_to(SOURCE)}:{line}: {verb} {resource} ({group or 'core'})")
    assert lacking == []
    assert seen >= 2


EVERY = {name: value for name, value in vars(rights).items() if name.isupper() and isinstance(value, tuple)}
BESIDE = {"TAINTING": rights.AGENT}
"""Tables that are given only together with another."""


OF_RIGHTS = [name for name, table in EVERY.items() if any(isinstance(one, Right) for one in table)]


@pytest.mark.parametrize("name", OF_RIGHTS)
def test_whoever_may_update_may_get_because_a_store_reads_before_it_writes(name: str) -> None:
    table = (*EVERY[name], *BESIDE.get(name, ()))
    readable = {(one.resource, one.group) for one in table if one.verb == "get" and not one.part}
    written = {(one.resource, one.group) for one in table if one.verb == "update" and one.part in {"", "status"}}
    assert written <= readable
