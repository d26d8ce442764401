"""Times in JSON: every verb and every schema of the API gives RFC 3339 text in UTC, never a number."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from fairlead.cli import main
from fairlead.serve.v1 import app
from tests.unit.cli.liveservice import Service, serving
from tests.unit.serve.world import World

IS_TIME = re.compile(r"(^|_)(at|time|when|date|since|until|moment|timestamp)$|^(created|started|finished|expires)")
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
NO_TIME = "0001-01-01T00:00:00Z"

SHOWN = (
    "ps -a",
    "stats --no-stream",
    "trace web",
    "explain web",
    "inspect web",
    "image ls",
    "images",
    "gpus",
    "sharing",
    "topology",
    "nodes",
    "capacity",
    "events",
    "get pods",
    "status",
    "whoami",
    "quota list",
    "queue create lab",
    "queue set lab --weight 2",
    "queue ls",
    "volume ls",
    "volume inspect data",
    "secrets list",
    "secrets show token",
    "secret list",
    "secret show token",
    "reserve list",
    "simulate faults",
    "simulate profiles",
    "settings",
)
"""Lines whose JSON is walked here; `web` runs and has run a GPU."""
LOGS = {"api", "up", "scheduler", "controller", "kubelet", "fabric machine", "fabric serve"}
"""Long-lived processes, whose option is the form of their log."""
_TIMELESS = """
apply
attach|detach|quota apply|quota set|state check|agent check|withdraw|doctor|isolate audit|cdi diff|cdi explain|dra check
dra eval|dra explain|dra slices|dra claims|dra free
fabric list|fabric status|fabric activate|fabric deactivate
vfio list|vfio check|vfio plan|vfio bind|vfio release|vfio reset
cdi inject|cdi lint|cdi list|cdi validate|cdi generate|mig export|mig generate-config|mig list|mig plan
context list
compose config|state list
"""
OF_A_LEDGER = frozenset({"leases", "lease history", "lease report", "lease baseline list", "usage", "usage check"}) | {
    "budget list",
    "budget show",
}
"""Verbs of the node's ledger, which has no entry here: `test_cli_lease.py`, `test_cli_lease_report.py`,
`test_cli_usage.py` and `test_api_budgets.py` read them."""
OF_TENANCIES = frozenset({"tenancy create", "tenancy list", "tenancy show", "tenancy set", "tenancy test"})
"""Verbs of a service that keeps tenancies, which the one here does not: `test_api_tenancies.py` reads their view."""
OF_ACCOUNTS = frozenset(
    {
        *("user create", "user list", "key list", "ssh-key list", "audit"),
        *("webhook list", "webhook show", "notify list", "notify show"),
    }
)
"""Verbs of a service with accounts, which the one here does not have: `test_api_accounts.py` and
`test_api_audit.py` read their views."""
OF_COMPOSE = frozenset({"compose ps"})
"""Shows the containers of a project as `ps` shows all: in the view that `ps -a` is walked for."""
OF_BACKUPS = frozenset({"state backup", "state restore"})
"""Verbs of a state folder in nobody's use, or with a file to write: `process/backup/test_cli_backup.py` reads them."""
TIMELESS = frozenset(_TIMELESS.strip().replace("\n", "|").split("|"))
"""Verbs that answer what is so now, by their source: no field of theirs is a time."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    value = tmp_path_factory.mktemp("values") / "value"
    value.write_text("x")
    with serving(tmp_path_factory.mktemp("times")) as service:
        made = service.fairlead("run", "-d", "--name", "web", "-g", "1", "demo", "sleep", "600")
        assert made.exit_code == 0, made.stderr
        assert service.fairlead("wait", "--state", "started", "web").exit_code == 0
        assert service.fairlead("run", "--name", "past", "demo", "true").exit_code == 0
        assert service.fairlead("volume", "create", "data").exit_code == 0
        assert service.fairlead("secrets", "create", "token", str(value)).exit_code == 0
        night = service.fairlead("reserve", "-g", "1", "--from", "tomorrow 9:00", "--for", "1h", "--name", "night")
        assert night.exit_code == 0, night.stderr
        yield service


def walk(value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield (path, key, value) of every field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}", key, inner
            yield from walk(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, f"{path}[]")


@pytest.mark.parametrize("line", SHOWN)
def test_a_verb_gives_times_as_text(live: Service, line: str) -> None:
    form = () if line in {"inspect web", "volume inspect data"} else ("-o", "json")
    result = live.fairlead(*shlex.split(line), *form)
    assert result.exit_code == 0, result.stderr
    fields = list(walk(json.loads(result.stdout)))
    times = [(path, value) for path, key, value in fields if IS_TIME.search(key) and not isinstance(value, dict | list)]
    assert [(path, value) for path, value in times if value and not RFC_3339.fullmatch(str(value))] == []
    # A moment of this century is a time in a field of any name.
    numbers = [(path, value) for path, _, value in fields if type(value) in {int, float} and "bytes" not in path]
    assert [(path, value) for path, value in numbers if 1e9 < value < 4e9] == []


@pytest.mark.parametrize(
    "line", ["ps -a", "trace web", "stats --no-stream", "image ls", "events", "status", "explain web"]
)
def test_the_walk_meets_a_time_where_there_is_one(live: Service, line: str) -> None:
    shown = json.loads(live.fairlead(*shlex.split(line), "-o", "json").stdout)
    assert [value for _, key, value in walk(shown) if IS_TIME.search(key) and value and value != NO_TIME]


def _verbs_with_json(command: click.Command, path: str, ctx: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from _verbs_with_json(inner, f"{path} {name}".strip(), ctx)
    elif any("json" in one.type.choices for one in command.params if isinstance(one.type, click.Choice)):
        yield path


def test_every_verb_with_json_is_walked_or_said_to_know_no_time() -> None:
    known = {*LOGS, *SHOWN}
    found = list(_verbs_with_json(main.root, "", click.Context(main.root)))
    lines = {name for name in found if any(line == name or line.startswith(f"{name} ") for line in known)}
    elsewhere = OF_A_LEDGER | OF_TENANCIES | OF_ACCOUNTS | OF_COMPOSE | OF_BACKUPS
    assert [name for name in found if name not in lines | TIMELESS | elsewhere] == []


def test_no_schema_of_the_api_has_a_time_that_is_a_number(tmp_path: Path) -> None:
    document = app.create_app(World(tmp_path).services).openapi_schema.to_schema()
    schemas = document["components"]["schemas"]
    assert len(schemas) > 30
    fields = [
        (f"{name}.{field}", field, described)
        for name, schema in schemas.items()
        for field, described in schema.get("properties", {}).items()
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            given = operation.get("parameters", ()) if isinstance(operation, dict) else ()
            fields += [(f"{method} {path} {one['name']}", one["name"], one.get("schema", {})) for one in given]
    times = [(path, described) for path, field, described in fields if IS_TIME.search(field)]
    assert len(times) > 10
    assert [path for path, described in times if re.search(r'"(number|integer)"', json.dumps(described))] == []
