"""What `from fairlead import Client` loads, what a type checker says of a program that uses it, what is generated."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import fairlead
from fairlead import errors
from fairlead.client import answers, asynchronous, client, container, record
from tools import generate_client

_SERVER = (
    "litestar",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "aiosqlite",
    "asyncpg",
    "aiohttp",
    "grpc",
    "google.protobuf",
    "httpx",
    "structlog",
    "prometheus_client",
    "pynvml",
    "yaml",
    "click",
    "fairlead.serve",
    "fairlead.cli",
    "fairlead.node",
    "fairlead.plan",
    "fairlead.store",
)


def _loaded(code: str) -> set[str]:
    argv = (sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)")
    return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


def test_the_client_loads_no_server() -> None:
    loaded = _loaded(
        "from fairlead import Client, AsyncClient\nClient('/run/x.sock')\nAsyncClient('https://lab:1', key='k')"
    )
    assert "fairlead.client.httptransport" in loaded
    assert [name for name in _SERVER if name in loaded] == []


def test_importing_the_package_loads_nothing_of_it() -> None:
    assert {name for name in _loaded("import fairlead") if name.startswith("fairlead")} == {"fairlead"}
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        fairlead.Clint  # type: ignore[attr-defined]  # noqa: B018 what is tested


def test_generated_types_are_up_to_date() -> None:
    for file, text in generate_client.modules().items():
        found = (generate_client.FOLDER / file).read_text()
        assert found == text, f"the API changed: run tools/generate_client.py ({file})"


_PROGRAM = """
import asyncio
from fairlead import AsyncClient, Client, errors

def train(client: Client) -> int:
    made = client.run("pytorch", ["python", "train.py"], gpus=2, memory="64Gi", volumes=[
        {"name": "data", "container_path": "/data"},
    ])
    for line in made.logs(follow=True):
        print(line.upper())
    code: int | None = made.wait(timeout_s=5).exit_code
    names: list[str] = [one.gpu.name for one in client.gpus()]
    return (code or 0) + len(names) + made.exec(["nvidia-smi", "-L"]).exit_code

async def many(url: str) -> list[str]:
    async with AsyncClient(url, key="k") as client:
        made = await client.run("pytorch", gpus=1)
        lines: list[str] = [line async for line in made.logs(follow=True)]
        state: str = (await made.wait()).state
        return [state, *lines]

try:
    asyncio.run(many("https://lab:8443"))
except errors.FairleadError as error:
    print(error.reason, error.hint)
"""
_WRONG = """
from fairlead import AsyncClient, Client

Client().run("pytorch", gpu=2)
Client().run("pytorch", volumes=[{"name": "data"}])
Client().gpus()[0].gpu.nmae
Client().container("a").wait(timeout="5")
AsyncClient().gpus().items
"""


@pytest.mark.slow
def test_a_type_checker_knows_every_answer_and_every_mistake(tmp_path: Path) -> None:
    for name, text in (("right", _PROGRAM), ("wrong", _WRONG)):
        (tmp_path / f"{name}.py").write_text(text)
    argv = (sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", tmp_path / "cache")
    right = subprocess.run((*argv, tmp_path / "right.py"), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (right.stdout, right.returncode) == ("", 0), right.stderr
    wrong = subprocess.run((*argv, tmp_path / "wrong.py"), capture_output=True, text=True, check=False, cwd=tmp_path)
    lines = {line.split(":")[1] for line in wrong.stdout.splitlines() if ": error:" in line}
    assert lines == {"4", "5", "6", "7", "8"}, wrong.stdout


def test_every_public_method_says_what_it_does() -> None:
    for kind in (client.Client, container.Container, asynchronous.AsyncClient, asynchronous.AsyncContainer):
        found = {name: one for name, one in inspect.getmembers(kind) if not name.startswith("_")}
        assert [name for name, one in found.items() if not inspect.getdoc(one)] == []
        assert len(found) > 10


def test_both_clients_offer_the_same() -> None:
    def public(kind: type[object]) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(client.Client) - public(asynchronous.AsyncClient) == {"namespace"}
    assert public(container.Container) - public(asynchronous.AsyncContainer) == {"namespace", "image", "gpus"}


def test_a_notebooks_tables_hold_no_markup_of_others() -> None:
    evil = answers.Explanation(
        name="<script>alert(1)</script>", state="", summary="<b>", reason='"', facts={"<i>": "<u>"}, at=None
    )
    shown = evil._repr_html_() + record.Listing([evil], columns=("name", "facts"))._repr_html_()
    assert not [tag for tag in ("<script", "<b>", "<i>", "<u>") if tag in shown]
    assert shown.count("&lt;script&gt;") == 2
    many = record.Listing([evil] * 300, columns=("summary",))._repr_html_()
    assert (many.count("<tr>"), "100 more" in many) == (201, True)


_ALONE = {
    "click": ("click",),
    "cryptography": ("cryptography", "cffi", "_cffi_backend"),
    "fairlead-cdi": (),
    "msgspec": ("msgspec",),
    "nvidia-ml-py": ("pynvml",),
    "pyyaml": ("yaml", "_yaml"),
    "websockets": ("websockets",),
}
_VERBS = """
import importlib, json, sys
sys.path[:0] = sys.argv[1:]
from fairlead import AsyncClient, Client
from fairlead.cli import main, verbs
from fairlead.cli.core import lazygroup
missing = []
for name, verb in verbs.VERBS.items():
    try:
        lazygroup.load(verb.target)
    except ModuleNotFoundError as error:
        missing.append([name, lazygroup.package_missing(error).reason])
asked = (["up", "--help"], ["doctor"], ["scheduler"], ["ps"])
print(json.dumps([missing, *(main.invoke(words, env={"FAIRLEAD_URL": "/none"}) for words in asked)]))
"""


def test_client_and_verbs_work_where_the_servers_packages_are_not_installed(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert {re.split("[><=]", one)[0] for one in project["dependencies"]} == _ALONE.keys()
    site = Path(click.__file__).parents[1]
    for name in itertools.chain(*_ALONE.values()):
        for found in site.glob(f"{name}*"):
            if not found.name.endswith(("-info", ".pth")):
                (tmp_path / found.name).symlink_to(found)
    sources = Path(fairlead.__file__).parents[1]
    argv = (sys.executable, "-I", "-S", "-c", _VERBS, str(tmp_path), str(sources), str(sources / "fairlead_cdi/src"))
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    missing, *codes = json.loads(done.stdout)
    assert dict(missing) == dict.fromkeys(
        ("sharing", "up", "state", "agent", "kubelet", "runtime", "isolate", "mig"), "PackageMissing"
    )
    assert codes == [errors.TABLE[errors.Unavailable].exit] * 4
    for name in ("asyncinotify", "structlog", "aiohttp"):
        assert f"needs the Python package that has {name}, and it is not installed" in done.stderr
    assert done.stderr.count("install Fairlead's wheel with its extra: fairlead[server]") == 3
