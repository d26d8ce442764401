"""The container image: what it says of itself, what is in it and what is not, and that it runs locked down."""

from __future__ import annotations

import importlib.util
import json
import re
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

import fairlead
from tests.cluster import images, pods
from tools.cluster import api
from tools.image import build, contents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_PYTHON = "/opt/fairlead/bin/python"
_MOST_BYTES = 80_000_000  # 76, of which numpy is some 16 and the database of accounts 8; the promise is 150
_UNWANTED = {
    *("sh", "bash", "dash", "busybox", "perl", "apt", "apt-get", "dpkg", "su", "mount", "passwd", "ldconfig"),
    *("gcc", "cc", "g++", "ld", "as", "make", "pip", "pip3", "protoc", "hatchling", "uv"),
}
_RESTRICTED = {"metadata": {"name": "locked", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}

# Walks every module of the program in the image: a library that was left out and is needed would show.
_IMPORT_ALL = """
import importlib, json, pkgutil, sys
import fairlead
from fairlead.serve.api import app
from fairlead.serve.v1 import app as v1
names = [item.name for item in pkgutil.walk_packages(fairlead.__path__, "fairlead.")]
lacking = {}
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        lacking[name] = error.name
print(json.dumps({"modules": names, "lacking": lacking, "paths": sorted(app.describe(v1.create_app(None))["paths"])}))
"""

_LOOK = """
import json, os, pathlib, ssl, sqlite3, zoneinfo
def refused(path):
    try:
        pathlib.Path(path).write_text("x")
    except OSError as error:
        return error.errno
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "capabilities": status["CapEff"].strip(),
    "seccomp": status["Seccomp"].strip(), "tmp": refused("/tmp/x"), "opt": refused("/opt/fairlead/x"),
    "authorities": ssl.create_default_context().cert_store_stats()["x509_ca"], "home": str(pathlib.Path.home()),
}))
"""
_EROFS = 30


@pytest.fixture(scope="module")
def config(built_image: build.Image) -> dict[str, Any]:
    found: dict[str, Any] = build.read(built_image)[0]["config"]
    return found


@pytest.fixture(scope="module")
def files(built_image: build.Image) -> dict[str, contents.Entry]:
    return {entry.path: entry for entry in contents.entries(built_image)}


# what it says of itself


def test_it_runs_fairlead_as_a_user_that_is_a_number_and_not_root(config: dict[str, Any]) -> None:
    assert config["Entrypoint"] == ["/opt/fairlead/bin/fairlead"]
    assert config["User"] == "65532:65532"


def test_its_labels_name_it(config: dict[str, Any]) -> None:
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert labels["title"] == "Fairlead"
    assert labels["version"] == fairlead.__version__
    assert labels["licenses"] == "Apache-2.0"
    assert labels["source"].startswith("https://")


def test_nothing_of_this_machine_is_in_its_environment(config: dict[str, Any]) -> None:
    assert {item.partition("=")[0] for item in config["Env"]} == {"PATH", "LANG", "PYTHONDONTWRITEBYTECODE"}


# what is in it


def test_it_is_small(built_image: build.Image) -> None:
    assert built_image.packed_bytes < _MOST_BYTES


def test_there_is_no_shell_no_package_manager_and_no_compiler(files: dict[str, contents.Entry]) -> None:
    members = {path: entry.member for path, entry in files.items() if not entry.member.isdir()}
    programs = {PurePosixPath(path).name for path, member in members.items() if member.mode & 0o111}
    assert "python3.11" in programs
    assert programs & _UNWANTED == set()
    assert [path for path in files if path.startswith(("usr/include", "usr/lib/gcc"))] == []
    assert [path for path in files if "/site-packages/pip" in path or "grpc_tools" in path] == []


def test_no_program_changes_its_user_and_nothing_but_tmp_can_be_written_by_all(
    files: dict[str, contents.Entry],
) -> None:
    kept = {path: entry.member for path, entry in files.items() if not entry.member.issym()}
    assert [path for path, member in kept.items() if member.mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert [path for path, member in kept.items() if member.mode & stat.S_IWOTH] == ["tmp"]
    assert {(member.uid, member.gid) for member in kept.values()} == {(0, 0)}


def test_every_module_is_compiled_and_never_compared_with_its_source(files: dict[str, contents.Entry]) -> None:
    sources = [path for path in files if path.endswith(".py") and "/site-packages/fairlead/" in path]
    assert len(sources) > 100
    for path in sources:
        compiled = files[importlib.util.cache_from_source(path)].content
        assert int.from_bytes(compiled[4:8], "little") == 0b01, path  # PEP 552: by hash, not checked


def test_a_new_version_of_fairlead_alone_changes_only_the_uppermost_layer(files: dict[str, contents.Entry]) -> None:
    ours = re.compile(r"opt/fairlead/(bin|lib/python3\.11/site-packages)/fairlead")
    own = [path for path, entry in files.items() if entry.layer == "own" and entry.member.isfile()]
    below = [path for path, entry in files.items() if entry.layer != "own"]
    assert "opt/fairlead/bin/fairlead" in own
    assert [path for path in own if not ours.match(path)] == []
    assert [path for path in below if ours.match(path)] == []


def test_scanners_find_every_package_with_its_version(files: dict[str, contents.Entry]) -> None:
    status = files["var/lib/dpkg/status"].content.decode()
    listed = {PurePosixPath(path).stem for path in files if path.startswith("var/lib/dpkg/info/")} - {"info"}
    assert {line.split()[1] for line in status.splitlines() if line.startswith("Package:")} == listed
    assert [path for path in files if re.search(r"/grpcio-[0-9.]+\.dist-info/METADATA$", path)] != []


# that it runs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--help",), "Usage: fairlead"),
        (("--version",), f"fairlead {fairlead.__version__}"),
        (("cdi", "list"), "DEVICE"),
        (("settings",), "cluster.namespace"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_verbs_run_without_root_on_a_read_only_root(
    local_image: images.Local, arguments: tuple[str, ...], said: str
) -> None:
    done = local_image.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_every_module_can_be_imported_and_the_api_described(local_image: images.Local) -> None:
    done = local_image.run("-c", _IMPORT_ALL, program=_PYTHON)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "fairlead.node.agent" in found["modules"]
    assert found["lacking"] == {}
    assert "/v1/containers" in found["paths"]


def test_its_scheduler_judges_nodes_by_array_with_every_policy(local_image: images.Local) -> None:
    ask = "from fairlead.cli.process import scheduler; print(type(scheduler.rankings_of('fairlead')).__name__)"
    done = local_image.run("-c", ask, program=_PYTHON)
    assert (done.returncode, done.stdout) == (0, "EngineRankings\n"), done.stderr


@pytest.fixture
def locked_space(server: api.API) -> Iterator[pods.Space]:
    """A namespace whose pods must keep to Kubernetes' "restricted" level."""
    server.create("/api/v1/namespaces", _RESTRICTED)
    one = pods.Space(server, "locked")
    accounts = f"/api/v1/namespaces/{one.namespace}/serviceaccounts"
    server.until(accounts, lambda items: items or None, what="the namespace has its service account")
    yield one
    one.clear()
    server.delete(f"/api/v1/namespaces/{one.namespace}")
    server.until(
        "/api/v1/namespaces",
        lambda items: True if all(item["metadata"]["name"] != one.namespace for item in items) else None,
        what="the namespace is gone",
    )


def _pod(image: str, **container: Any) -> dict[str, Any]:
    context = {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    main = {"name": "main", "image": image, "imagePullPolicy": "Never", "securityContext": context, **container}
    return {"metadata": {"name": "one"}, "spec": {"restartPolicy": "Never", "containers": [main]}}


def test_it_runs_in_a_restricted_namespace(locked_space: pods.Space, fairlead_image: str) -> None:
    locked_space.server.create(locked_space.path, _pod(fairlead_image, args=["--version"]))
    locked_space.until_phase("one", "Succeeded")
    assert locked_space.log("one") == f"fairlead {fairlead.__version__}\n"


def test_inside_a_pod_it_has_a_user_no_capabilities_and_nowhere_to_write(
    locked_space: pods.Space, fairlead_image: str
) -> None:
    locked_space.server.create(locked_space.path, _pod(fairlead_image, command=[_PYTHON, "-c", _LOOK]))
    locked_space.until_phase("one", "Succeeded")
    seen = json.loads(locked_space.log("one"))
    assert (seen["uid"], seen["gid"], seen["home"]) == (65532, 65532, "/")
    assert int(seen["capabilities"], 16) == 0
    assert seen["seccomp"] == "2"  # a filter is in force
    assert seen["tmp"] == seen["opt"] == _EROFS
    assert seen["authorities"] > 100
