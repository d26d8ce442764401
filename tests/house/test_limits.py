"""The limits of the house: sizes, imports, logs, ports, and what no file may say."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairlead import cli, plan, telemetry
from tests.house import measure

_LARGEST_PORT = 8
# How far a room may stay below its ceiling before the ceiling has to come down.
_SLACK, _SLACK_LINES = 0.08, 60
# Papers that the authors share and the repository does not have; written so that this line is not one of its finds.
_PRIVATE = re.compile(
    r"\breference/(?:caas|cdi-toolkit|cluster|device-plugin|dra|scheduling)[.]md|\b(?:DESIGN|MISSION|LAYOUT|STYLE)[.]md"
)
_PORTS = (
    "fairlead.store.port",
    "fairlead.store.subresource",
    "fairlead.engine.port",
    "fairlead.silicon.port",
    "fairlead.serve.backend.port",
)


def _python(root: Path, *folders: str) -> list[Path]:
    return [path for folder in folders for path in measure.sources(root / folder)]


def test_counting_leaves_out_blanks_comments_and_docstrings() -> None:
    text = '"""Doc\nstring."""\n\n# comment\nX = """a\nb"""\n\n\ndef f() -> int:\n    """Doc."""\n    return 1  # why\n'
    assert measure.code_lines(text) == 4


def test_unit_tests_lie_where_what_they_test_lies(root: Path) -> None:
    """A folder of tests/unit has the path of a package below src/fairlead, or of one module, or of fairlead_cdi."""
    tests = {path.parent.relative_to(root / "tests/unit") for path in _python(root, "tests/unit")}
    assert [str(folder) for folder in sorted(tests) if not _is_ours(root / "src", folder)] == []


def _is_ours(src: Path, name: Path) -> bool:
    folders = (src / name, src / "fairlead" / name)
    return any((one / "__init__.py").exists() or one.with_suffix(".py").exists() for one in folders)


def test_sources_are_public_or_in_the_repository(root: Path) -> None:
    texts = ((path, path.read_bytes().decode(errors="replace")) for path in measure.tracked(root))
    assert [str(path) for path, text in texts if _PRIVATE.search(text)] == []


def test_decisions_load_neither_sockets_nor_processes() -> None:
    names = [item.name for item in pkgutil.walk_packages(plan.__path__, "fairlead.plan.")]
    engine = [name for name in names if name.startswith("fairlead.plan.schedule.engine")]
    forbidden = {"asyncio", "socket", "subprocess", "ctypes", "aiohttp", "httpx", "grpc", "numpy"}
    assert len(names) > 20
    assert len(engine) > 4
    assert _loaded([name for name in names if name not in engine]) & forbidden == set()
    assert _loaded(engine) & forbidden == {"ctypes", "numpy"}  # numpy loads ctypes itself


def test_verbs_load_no_numpy_before_they_schedule() -> None:
    names = [item.name for item in pkgutil.walk_packages(cli.__path__, "fairlead.cli.")]
    assert "numpy" not in _loaded(names)


def test_the_service_and_the_agent_load_no_database_before_the_tls_door_is_on() -> None:
    loaded = _loaded(["fairlead.cli.process.standalone", "fairlead.cli.process.agent", "fairlead.node.agent"])
    assert {"litestar", "grpc"} <= loaded  # it looks at the right programs
    assert loaded & {"sqlalchemy", "alembic", "aiosqlite", "asyncpg"} == set()


def test_an_agent_loads_no_library_that_it_may_never_need() -> None:
    """Each is a megabyte or more of its 60: SQLite is the ledger's, YAML a file's, uvicorn the API's."""
    loaded = _loaded(["fairlead.cli.process.agent", "fairlead.store.kubernetes.credentials", "fairlead.serve.probes"])
    assert {"grpc", "h11"} <= loaded  # it looks at the right program
    assert loaded & {"sqlite3", "yaml", "uvicorn", "litestar", "aiohttp", "prometheus_client", "secrets"} == set()


def _loaded(names: list[str]) -> set[str]:
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_no_room_grows_unnoticed(root: Path) -> None:
    ceilings: dict[str, int] = tomllib.loads((root / "tests/house/rooms.toml").read_text())["code_lines"]
    lines = measure.rooms(root)
    assert lines.keys() == ceilings.keys()
    assert {room: f"{count} of {ceilings[room]}" for room, count in lines.items() if count > ceilings[room]} == {}
    loose = {room: count for room, count in lines.items() if ceilings[room] > count * (1 + _SLACK) + _SLACK_LINES}
    assert loose == {}, "these rooms got smaller: lower their ceilings in tests/house/rooms.toml"


def test_nobody_imports_mocks(root: Path) -> None:
    guilty = [
        str(path)
        for path in _python(root, "src", "tests")
        if "mock" in (text := path.read_text())
        and any(name.startswith(("unittest.mock", "mock")) for name in measure.module(text).imports)
    ]
    assert not guilty


def test_only_the_doors_start_processes(root: Path) -> None:
    package = root / "src" / "fairlead"
    doors = (package / "command.py", package / "inject", package / "kernel" / "programs")
    found = {
        str(path): calls
        for path in _python(root, "src")
        if not any(path.is_relative_to(door) for door in doors)
        and (calls := measure.starts_of_processes(path.read_text()))
    }
    assert not found


@pytest.mark.parametrize(
    "call",
    [
        "await asyncio.create_subprocess_exec('true')",
        "asyncio.subprocess.create_subprocess_shell('true')",
        "os.fork()",
        "posix.fork()",
        "os.posix_spawn('/bin/true', [], {})",
        "os.execvpe('true', [], {})",
        "subprocess.run(['true'])",
        "concurrent.futures.ProcessPoolExecutor()",
    ],
)
def test_a_process_that_is_started_is_noticed(call: str) -> None:
    assert measure.starts_of_processes(f"async def f():\n    x = {call}\n")


@pytest.mark.parametrize("module", ["os import fork", "subprocess import run as go", "multiprocessing import Process"])
def test_a_starter_of_processes_under_another_name_is_noticed(module: str) -> None:
    assert measure.starts_of_processes(f"from {module}\n")


def test_every_module_says_what_it_owns(root: Path) -> None:
    silent = [
        str(path)
        for path in _python(root, "src", "tools")
        if path.read_text().strip() and not measure.module(path.read_text()).doc
    ]
    assert not silent


def test_logs_are_constant_phrases_with_facts_under_known_keys(root: Path) -> None:
    allowed = {*telemetry.KEYS, "exc_info"}
    wrong = [
        f"{path}:{call.line}"
        for path in _python(root, "src")
        for call in measure.log_calls(path.read_text())
        if not call.is_constant or not call.keywords <= allowed
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


def test_verbs_print_through_the_one_function_that_escapes_text_from_outside(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}:{call.line}"
        for path in _python(root, "src/fairlead/cli")
        if path.name != "plaintext.py"
        for call in measure.module(path.read_text()).calls
        if call.name in {"click.echo", "click.secho", "print"}
    ]
    assert found == []  # plaintext.echo, or plaintext.write for the bytes of a document


def test_no_module_of_the_tests_hides_one_of_pythons(root: Path) -> None:
    """Tests' folders stand first on the path, of processes that tests start too: `selectors` was another there."""
    names = {path.stem: str(path) for path in (root / "tests").rglob("*.py")}
    assert not {name: path for name, path in names.items() if name in sys.stdlib_module_names}


def test_test_modules_have_unique_names(root: Path) -> None:
    names = [path.name for path in _python(root, "tests") if path.name.startswith("test_")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_no_lock_file_says_where_its_packages_come_from(root: Path) -> None:
    # which registry or mirror a machine asks is the machine's own matter
    locks = [path for path in measure.tracked(root) if path.suffix == ".lock" or path.name == "go.mod"]
    assert len(locks) > 3
    assert [
        str(path) for path in locks if re.search(r"://|^--?(i|f|index|extra-index|find-links)", path.read_text(), re.M)
    ] == []


@pytest.mark.parametrize("name", ["deviceplugin_pb2"])
def test_generated_messages_are_there_and_have_their_fields(name: str) -> None:
    module = importlib.import_module(f"fairlead.wire.proto.{name}")
    fields = {field.name: field.number for field in module.RegisterRequest.DESCRIPTOR.fields}
    assert fields == {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4}
    answer = {field.name: field.number for field in module.ContainerAllocateResponse.DESCRIPTOR.fields}
    assert answer == {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5}


@pytest.mark.parametrize("folder", ["src/fairlead/wire/proto", "tests/cluster/proto"])
def test_every_statement_of_messages_has_been_generated(root: Path, folder: str) -> None:
    statements = {path.stem for path in (root / folder).glob("*.proto")}
    assert statements
    assert {path.stem.removesuffix("_pb2") for path in (root / folder).glob("*_pb2.py")} == statements


def test_only_a_callers_part_of_the_machine_mints_places(root: Path) -> None:
    """A `Place` says whose a pod is and by which rules it is judged: neither a route nor a backend makes one up."""
    minting, mints = root / "src/fairlead/serve/backend/place.py", {"Place", "Submission"}
    found = []
    for path in _python(root, "src"):
        if "backend" not in (text := path.read_text()):  # parsing all of it takes twenty seconds
            continue
        tree = ast.parse(text)
        imported = {
            f"{prefix}{name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for one in node.names
            for module, prefix in ((f"{node.module}.{one.name}", f"{one.asname or one.name}."), (node.module, ""))
            if module == "fairlead.serve.backend.place"
            for name in (mints if prefix else mints & {one.name})
        }
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and path != minting)
        found += [f"{path.relative_to(root)}:{one.lineno}" for one in calls if ast.unparse(one.func) in imported]
    assert found == []
