"""The security page promises no test that is not there, and no finding without one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_finding_of_the_security_page_names_tests_that_are_there(root: Path) -> None:
    rows = [
        line
        for line in (root / "docs/design/security.md").read_text().splitlines()
        if re.match(r"\| V?\d+( to \d+|, \d+)? \|", line)
    ]
    assert {int(row.split("|")[1]) for row in rows if not row.startswith("| V")} == set(range(1, 13))
    missing = [row[:60] for row in rows if not _NAMED.search(row)]
    for path, name in {pair for row in rows for pair in _NAMED.findall(row)}:
        tree = ast.parse((root / path).read_text()) if (root / path).exists() else ast.Module(body=[], type_ignores=[])
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        missing += [] if name in names else [f"{path}::{name}"]
    assert missing == []
