"""Reads the tree as the house rules see it: code lines, imports, log calls."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


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


@functools.cache
def code_lines(text: str) -> int:
    """Count lines with code: no blanks, comments or strings that stand alone, which document what is before them."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            statement.append(token)
        elif token.type == tokenize.NEWLINE:
            if any(one.type != tokenize.STRING for one in statement):
                lines.update(line for one in statement for line in range(one.start[0], one.end[0] + 1))
            statement.clear()
    return len(lines)


def inner_imports(text: str) -> list[int]:
    """Return the lines of imports inside functions."""
    return [
        inner.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]


def imported_modules(text: str) -> set[str]:
    """Return every module a file imports, anywhere in it; `from a import b` counts as `a` and `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{name.name}" for name in node.names)))
    return found


def log_calls(text: str) -> Iterator[ast.Call]:
    """Yield calls of `telemetry.log.LEVEL(…)` and `telemetry.timed(…)`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) == "telemetry.log" or ast.unparse(node.func) == "telemetry.timed":
            yield node


def tracked(root: Path) -> list[Path]:
    """Return the files git keeps."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    return [path for name in done.stdout.decode().split("\0") if name and (path := root / name).is_file()]


_STARTERS = re.compile(
    r"(asyncio|loop)\.(subprocess\.)?(create_subprocess_(exec|shell)|subprocess_(exec|shell))"
    r"|os\.(fork|forkpty|posix_spawnp?|system|popen|exec[lv]p?e?|spawn[lv]p?e?)|pty\.(fork|spawn)"
    r"|(subprocess|multiprocessing)\..*|.*\.ProcessPoolExecutor"
)


def starts_of_processes(text: str) -> list[str]:
    """Return the calls in a module that start a program, or another process, as they are written."""
    called = (ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [name for name in called if _STARTERS.fullmatch(name)]
