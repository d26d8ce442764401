"""The limits of the house: sizes, imports, logs, ports, and what no file may say."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
from pathlib import Path

import pytest

from fairlead import telemetry
from tests.house import measure

_LARGEST_FILE, _LARGEST_PORT = 400, 8
# The aim is 25,000 for the whole mission. With the toolkit complete (engines' files, generator modes, BPF, the chart's
# renderer) the package stands above it; raise this only together with a reason here, and look for what can go first.
_LARGEST_PACKAGE = 31_000
_PORTS = ("fairlead.store.port", "fairlead.engine.port", "fairlead.silicon.port")
_HOST = re.compile(r"[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)+")
# Hosts of package registries: which one a machine uses is the machine's own matter. Kept as digests, because this
# file may not name them either.
_REGISTRIES = frozenset(
    {
        "a4aa2ac280bb8d1a0ce7",
        "8b5bb5eb9d758455b863",
        "8743857e3ea00fd1c64b",
        "3ca29e55be4befa48f87",
        "87d14f070cb9686970d0",
        "789e46d79514e28093ca",
        "00a7dc5a0cc388586b86",
        "9da5f32d964125123cc3",
        "71741fe2460a61505868",
        "e680c440a2e92079ab1b",
        "1ba4e37997a2e986efa6",
        "317d2d52829b78129d2c",
        "51c6b9f69c48a75b146d",
        "a05b0cf8b91804c7e046",
        "f65219c547f9c032a914",
        "2c77714df232b07f0e8f",
    }
)


def _python(root: Path, *folders: str) -> list[Path]:
    return [path for folder in folders for path in measure.sources(root / folder)]


def test_counting_leaves_out_blanks_comments_and_docstrings() -> None:
    text = '"""Doc\nstring."""\n\n# comment\nX = """a\nb"""\n\n\ndef f() -> int:\n    """Doc."""\n    return 1  # why\n'
    assert measure.code_lines(text) == 4


def test_no_file_is_longer_than_the_limit(root: Path) -> None:
    long = {str(path): lines for path, lines in measure.sizes(root / "src").items() if lines > _LARGEST_FILE}
    assert not long


def test_the_package_stays_small(root: Path) -> None:
    assert sum(measure.sizes(root / "src").values()) <= _LARGEST_PACKAGE


def test_imports_stand_at_the_top_except_where_the_command_line_loads_a_verb(root: Path) -> None:
    cli = root / "src" / "fairlead" / "cli"
    found = {
        str(path): lines
        for path in _python(root, "src")
        if cli not in path.parents and (lines := measure.inner_imports(path.read_text()))
    }
    assert not found


def test_nobody_imports_mocks(root: Path) -> None:
    guilty = [
        str(path)
        for path in _python(root, "src", "tests")
        if any(module.startswith(("unittest.mock", "mock")) for module in measure.imported_modules(path.read_text()))
    ]
    assert not guilty


def test_every_module_says_what_it_owns(root: Path) -> None:
    silent = [
        str(path)
        for path in _python(root, "src", "tools")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_logs_are_constant_phrases_with_facts_under_known_keys(root: Path) -> None:
    allowed = {*telemetry.KEYS, "exc_info"}
    wrong = [
        f"{path}:{call.lineno}"
        for path in _python(root, "src")
        for call in measure.log_calls(path.read_text())
        if not (call.args and isinstance(call.args[0], ast.Constant))
        or not {keyword.arg for keyword in call.keywords if keyword.arg} <= allowed
    ]
    assert not wrong


@pytest.mark.parametrize("name", _PORTS)
def test_ports_are_narrow(name: str) -> None:
    module = importlib.import_module(name)
    protocols = [kind for kind in vars(module).values() if getattr(kind, "_is_protocol", False)]
    ours = [kind for kind in protocols if kind.__module__ == name]
    assert ours
    for kind in ours:
        methods = [method for method in vars(kind) if not method.startswith("_")]
        assert len(methods) <= _LARGEST_PORT, kind


def test_test_modules_have_unique_names(root: Path) -> None:
    names = [path.name for path in _python(root, "tests") if path.name.startswith("test_")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def _registries(text: str) -> set[str]:
    found: set[str] = set()
    for host in _HOST.findall(text.lower()):
        parts = host.split(".")
        tails = [".".join(parts[start:]) for start in range(len(parts) - 1)]
        found.update(host for tail in tails if hashlib.sha256(tail.encode()).hexdigest()[:20] in _REGISTRIES)
    return found


def test_no_tracked_file_names_a_package_registry(root: Path) -> None:
    wrong = {str(path): found for path in measure.tracked(root) if (found := _registries(_text(path)))}
    assert not wrong


def test_a_registrys_name_would_be_found() -> None:
    name = ".".join(("files", "python" + "hosted", "org"))
    assert _registries(f"see https://{name}/packages/x.whl") == {name}


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


@pytest.mark.parametrize("name", ["deviceplugin_pb2"])
def test_generated_messages_are_there_and_have_their_fields(name: str) -> None:
    module = importlib.import_module(f"fairlead.wire.proto.{name}")
    fields = {field.name: field.number for field in module.RegisterRequest.DESCRIPTOR.fields}
    assert fields == {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4}
    answer = {field.name: field.number for field in module.ContainerAllocateResponse.DESCRIPTOR.fields}
    assert answer == {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5}


def test_every_statement_of_messages_has_been_generated(root: Path) -> None:
    folder = root / "src" / "fairlead" / "wire" / "proto"
    statements = {path.stem for path in folder.glob("*.proto")}
    assert statements
    assert {path.stem.removesuffix("_pb2") for path in folder.glob("*_pb2.py")} == statements
