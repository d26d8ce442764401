"""The hot path stays light: what a container's start imports, and that the library works without the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fairlead_cdi import spec

HOT = [
    "errors",
    "spec",
    "oci",
    "inject",
    "names",
    "validate",
    "annotation",
    "parse",
    "emit",
    "host.node",
    "host.trust",
    "directory",
    "difference",
    "lint",
    "yamltext",
]
"""Every module of the library but the two that bring another library: `yamlfile` and `cache`."""
HEAVY = {"yaml", "msgspec", "asyncio", "pathlib", "structlog", "click", "logging", "subprocess", "typing_extensions"}


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that code loads in an interpreter that finds the same packages as this one."""
    begin = f"import sys; sys.path[:0] = {sys.path!r}; before = set(sys.modules)"
    code = f"{begin}\n{code}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_no_module_of_the_library_is_left_out() -> None:
    folder = Path(spec.__file__).parent
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.name != "__init__.py")
    assert {".".join(path.parts) for path in paths} == {*HOT, "yamlfile", "cache"}


def test_the_package_itself_costs_nothing() -> None:
    assert modules_after("import fairlead_cdi") == {"fairlead_cdi"}


def test_reading_and_injecting_imports_only_the_standard_library() -> None:
    code = f"import {', '.join(f'fairlead_cdi.{name}' for name in HOT)}"
    found = modules_after(f"{code}\nfrom fairlead_cdi import inject, oci")
    assert found & HEAVY == set()
    assert found & {"grpc", "google", "aiohttp", "sqlite3", "ssl", "socket", "http", "ctypes"} == set()
    assert {name for name in found if name not in sys.stdlib_module_names} == {"fairlead_cdi"}


def test_the_one_line_use_with_json_specs_loads_no_yaml_reader() -> None:
    code = "from fairlead_cdi import Registry, scan; scan(['/nonexistent']).resolve([]); Registry.default"
    found = modules_after(code)
    assert found & HEAVY == set()
    assert {name for name in found if name not in sys.stdlib_module_names} == {"fairlead_cdi"}
