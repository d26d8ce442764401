"""Reads the tree as the house rules see it: code lines, imports, log calls."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard


def sources(folder: Path) -> list[Path]:
    """Return the Python files written by hand."""
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith("_pb2.py"))


def sizes(folder: Path) -> dict[Path, int]:
    """Return code lines by file."""
    return {path: code_lines(path.read_text()) for path in sources(folder)}


def rooms(root: Path) -> dict[str, int]:
    """Return code lines by room; the modules beside the rooms count together as `root`."""
    found: dict[str, int] = {}
    for path, lines in sizes(root / "src").items():
        package, *rest = path.relative_to(root / "src").parts
        room = package if package != "fairlead" else (rest[0] if len(rest) > 1 else "root")
        found[room] = found.get(room, 0) + lines
    return found


def code_lines(text: str) -> int:
    """Count lines with code: no blanks, comments or strings that stand alone, which document what is before them."""
    return module(text).code_lines


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it is written: `telemetry.log.info("claim prepared", claim=uid)`."""

    name: str
    """With dots; what no name stands for is `?`."""
    line: int
    is_constant: bool
    """Whether its first argument is one."""
    keywords: frozenset[str]


@dataclass(frozen=True, slots=True)
class Module:
    """What the rules ask of a module."""

    doc: str
    imports: frozenset[str]
    """Anywhere in it; `from a import b` counts as `a` and `a.b`."""
    calls: tuple[Call, ...]
    code_lines: int


@functools.cache
def module(text: str) -> Module:
    """Read a module, once for all rules of a process."""
    tree = ast.parse(text)
    imports: set[str] = set()
    calls: list[Call] = []
    code = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            calls.append(_call(node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_imported(node))
        elif isinstance(node, ast.Expr) and _is_text(node.value):
            code.difference_update(_lines(node))
            continue
        elif _is_text(node):
            code.update(_lines(node))  # blank ones in it too
        waiting += ast.iter_child_nodes(node)
    doc = ast.get_docstring(tree) or ""
    return Module(doc, frozenset(imports), tuple(calls), len(code))


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant | ast.JoinedStr]:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [name.name for name in node.names]
    if isinstance(node, ast.Import):
        return names
    return [node.module, *(f"{node.module}.{name}" for name in names)] if node.module else []


def _call(node: ast.Call) -> Call:
    is_constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return Call(_dotted(node.func), node.lineno, is_constant, frozenset(one.arg for one in node.keywords if one.arg))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def log_calls(text: str) -> list[Call]:
    """Return calls of `telemetry.log.LEVEL(…)` and `telemetry.timed(…)`."""
    return [one for one in module(text).calls if _LOGS.fullmatch(one.name)]


_LOGS = re.compile(r"telemetry\.(log\.\w+|timed)")


@functools.cache
def functions(path: Path) -> dict[str, str]:
    """Return the source of every function of a file by its name; none where there is no file."""
    text = path.read_text() if path.exists() else ""
    lines = text.splitlines()
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}


def tracked(root: Path) -> list[Path]:
    """Return the files git keeps."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    return [path for name in done.stdout.decode().split("\0") if name and (path := root / name).is_file()]


_STARTERS = re.compile(
    r"(asyncio|loop)\.(subprocess\.)?(create_subprocess_(exec|shell)|subprocess_(exec|shell))"
    r"|(os|posix)\.(fork|forkpty|posix_spawnp?|system|popen|exec[lv]p?e?|spawn[lv]p?e?)|pty\.(fork|spawn)"
    r"|(subprocess|multiprocessing)\..*|.*\.ProcessPoolExecutor"
)


_MAY_START = re.compile(r"process|fork|spawn|system|popen|exec[lv]|ProcessPool")
"""Without any of these a text names no starter, and need not be parsed."""


def starts_of_processes(text: str) -> list[str]:
    """Return the calls in a module that start a process, and the imports that would call one by another name."""
    if not _MAY_START.search(text):
        return []
    called = [one.name for one in module(text).calls if _STARTERS.fullmatch(one.name)]
    imports = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ImportFrom) and one.module)
    named = (f"{one.module}.{alias.name}" for one in imports for alias in one.names)
    return [*called, *(name for name in named if _STARTERS.fullmatch(name) and name != "asyncio.subprocess")]
