"""Doors of the runtime shim and the hook: config.json, policy, the kubelet's checkpoint, caches, the state."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import fairlead
from fairlead import errors
from fairlead.inject import cachereader, runtime
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests import kubeletcheckpoint
from tests.fuzz import hostile
from tests.fuzz.harness import ANY, Door, Feed

_NO_RUNTIME: Final = "/nonexistent/fuzz-runtime"
_KIND: Final = "nvidia.com/gpu"
_POD: Final = "pod-uid"
_PASSED: Final = 127
"""No runtime is there to become: the shim did what it had to do."""
_REFUSED: Final = frozenset(row.exit for row in errors.TABLE.values())
_LONGEST: Final = 5000


class Refused(Exception):
    """The container must not start."""


def config_json(**more: Any) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": [1]},
            "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute"],
            "args": ["true"],
            "cwd": "/",
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"]},
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "h",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
            {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"},
        ],
        "hooks": {"createContainer": [{"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 1}]},
        "annotations": {**kubeletcheckpoint.identity(_POD), "cdi.k8s.io/x": f"{_KIND}=0"},
        "linux": {
            "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 0}],
            "resources": {"devices": [{"allow": False, "type": "c", "major": 1, "minor": 3, "access": "rwm"}]},
            "namespaces": [{"type": "mount"}],
        },
        **more,
    }


def by_environment() -> dict[str, Any]:
    """Return a spec whose request reaches the environment: no annotation asks first."""
    return config_json(annotations=dict(kubeletcheckpoint.identity(_POD)), mounts=[])


SPEC: Final = {
    "cdiVersion": "0.5.0",
    "kind": _KIND,
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "mounts": [{"hostPath": "/usr/lib/x", "containerPath": "/usr/lib/x", "options": ["ro", "rbind"]}],
    },
}


def checkpoint() -> dict[str, Any]:
    """Return a kubelet's checkpoint that says the same as the specs' requests."""
    notes = {"cdi.k8s.io/x": f"{_KIND}=0"}
    given = kubeletcheckpoint.Given(_POD, ["0"], envs={"NVIDIA_VISIBLE_DEVICES": "0"}, annotations=notes)
    found: dict[str, Any] = json.loads(json.dumps(kubeletcheckpoint.document(given)))
    return found


class _Bundle:
    """A shim's surroundings in a folder: policy, specs, checkpoint, one bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "bundle" / "config.json"
        self.policy = folder / "runtime.json"
        self.checkpoint = folder / "kubelet_internal_checkpoint"
        self.cache = folder / "run" / "inject.json"
        for name, mode in (("bundle", 0o755), ("cdi", 0o755), ("run", 0o700)):
            (folder / name).mkdir(mode=mode)
        (folder / "cdi" / "a.json").write_text(json.dumps(SPEC))
        self.checkpoint.write_text(json.dumps(checkpoint()))
        self.checkpoint.chmod(0o600)
        self.policy.write_bytes(json.dumps(self.rules()).encode())
        self.config.write_bytes(json.dumps(config_json()).encode())

    def rules(self) -> dict[str, Any]:
        return {
            "runtimes": [_NO_RUNTIME],
            "specDirs": [str(self.folder / "cdi")],
            "hook": "",
            "hookTimeout": 30,
            "ldconfig": "",
            "cache": str(self.cache),
            "yamlCache": str(self.folder / "converted"),
            "allocations": str(self.checkpoint),
            "mode": "auto",
            "defaultKind": _KIND,
            "imageRequests": "honour",
            "acceptVolumeMounts": True,
            "checkAllocations": True,
            "annotationPrefixes": ["cdi.k8s.io/"],
            "variables": ["NVIDIA_VISIBLE_DEVICES"],
            "driverCapabilities": ["compute", "utility"],
            "checkRequirements": True,
        }

    def create(self) -> int:
        """Call the shim as an engine does; returns its exit code. Raises: Refused."""
        with _captured(self.folder / "stderr") as said:
            code = runtime.main(["create", "-b", str(self.config.parent), "x"], config=str(self.policy))
        words = said()
        if len(words) > _LONGEST:
            raise AssertionError(f"{len(words)} bytes were told: {words[:80]!r}")
        if code in _REFUSED and words.strip():
            raise Refused(words.decode(errors="replace"))
        if code != _PASSED:
            raise AssertionError(f"exit code {code}, told {words[:80]!r}")
        return code


@contextlib.contextmanager
def _captured(path: Path) -> Iterator[Callable[[], bytes]]:
    """Take what a block writes to standard error; the shim writes to the descriptor itself."""
    handle, kept = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), os.dup(2)
    os.dup2(handle, 2)
    try:
        yield path.read_bytes
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(handle)


def _opened(place: Callable[[_Bundle], Path], *, renews: bool = False) -> Any:
    @contextlib.asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Feed]:
        made = _Bundle(folder)
        valid = made.config.read_bytes()

        async def feed(data: bytes) -> None:
            target = place(made)
            made.config.write_bytes(valid)
            target.write_bytes(data)
            target.chmod(0o600)
            made.create()
            if target == made.config:
                _assert_kept(data, made.config.read_bytes())
            if renews:
                made.cache.unlink(missing_ok=True)

        yield feed

    return opened


def _assert_kept(before: bytes, after: bytes) -> None:
    if before == after:
        return
    old, new = json.loads(before), json.loads(after)
    for key in ("root", "hostname", "ociVersion"):
        if old.get(key) != new.get(key) and old.get(key) == old.get(key):
            raise AssertionError(f"{key} was changed")
    if isinstance(old.get("process"), dict) and _text(old["process"]) != _text(new["process"]):
        raise AssertionError("process.args was changed")


def _text(process: dict[str, Any]) -> str:
    """Return the arguments as text: a NaN is not equal to itself."""
    return json.dumps(process.get("args"))


def _written(made: _Bundle) -> dict[str, Any]:
    return {key: made.rules()[key] for key in ("cache", "yamlCache")}


@contextlib.asynccontextmanager
async def _policy(folder: Path) -> AsyncIterator[Feed]:
    made = _Bundle(folder)
    valid = made.config.read_bytes()

    async def feed(data: bytes) -> None:
        made.config.write_bytes(valid)
        document = data.replace(b"/FOLDER", str(folder).encode())
        if document.startswith(b"{") and len(document) > len(b"{}"):
            # Where the shim writes is the operator's to say; here it is this folder.
            document = json.dumps(_written(made)).encode()[:-1] + b"," + document[1:]
        made.policy.write_bytes(document)
        made.create()

    yield feed


def _policy_document() -> dict[str, Any]:
    made = _Bundle.__new__(_Bundle)
    made.folder, made.cache, made.checkpoint = (
        Path("/FOLDER"),
        Path("/FOLDER/run/inject.json"),
        Path("/FOLDER/checkpoint"),
    )
    return {key: value for key, value in made.rules().items() if key not in _written(made)}


_PART: Final = {
    "is_complete": True,
    "env": ["A=b"],
    "nodes": [[{"path": "/dev/n", "type": "c", "major": 1, "minor": 3}, {"allow": True, "type": "c", "access": "rwm"}]],
    "nodes_seen": [["/dev/null", 8630, 259]],
    "mounts": [{"destination": "/usr/lib/y", "source": "/usr/lib/y", "options": ["ro"]}],
    "hooks": [],
    "programs": [],
    "gids": [44],
}
CACHE: Final = {
    "format": cachereader.FORMAT,
    "folders": "/STATE",
    "files": {
        "/FOLDER/cdi/a.json": {
            "kind": _KIND,
            "facts": {"driver": ["550.54.15"]},
            **_PART,
            "env": ["C=d"],
            "nodes": [],
            "mounts": [],
            "gids": [],
        }
    },
    "devices": {f"{_KIND}=0": {"file": "/FOLDER/cdi/a.json", **_PART}},
}


@contextlib.asynccontextmanager
async def _cache(folder: Path) -> AsyncIterator[Feed]:
    made = _Bundle(folder)
    valid = json.dumps(by_environment()).encode()
    state = json.dumps(cachereader.state_of((str(folder / "cdi"),))).encode()

    async def feed(data: bytes) -> None:
        made.config.write_bytes(valid)
        made.cache.write_bytes(data.replace(b'"/STATE"', state).replace(b"/FOLDER", str(folder).encode()))
        made.cache.chmod(0o600)
        made.create()

    await feed(json.dumps(CACHE).encode())
    if b"/usr/lib/y" not in made.config.read_bytes():
        raise AssertionError("the cache was not used")
    yield feed


# The hook, a process of its own: it refuses to run in any other way ---------------------------------------------------

_HOOK: Final = (
    f"import sys; sys.path[:0] = [{str(Path(fairlead.__file__).parents[1])!r}]; "
    "from fairlead.inject.hook import program; sys.exit(program.main())"
)
STATE: Final = {
    "ociVersion": "1.0.2",
    "id": "x",
    "status": "creating",
    "pid": 1,
    "bundle": "/BUNDLE",
    "annotations": {"a": "b"},
}
HOOKED: Final = {
    "mounts": [{"destination": "/opt/x/liba.so.1.0", "source": "/usr/lib/liba.so.1.0", "options": ["ro"]}],
    "process": {"args": ["true"], "env": ["A=b"]},
    "annotations": {"a": "b"},
}
ARGUMENTS: Final = ["--link", "liba.so.1::/opt/x/liba.so", "--driver", "550.54.15", "--parameters", "/FOLDER/none"]


@contextlib.asynccontextmanager
async def _hook(folder: Path, what: str) -> AsyncIterator[Feed]:
    bundle = folder / "bundle"

    async def feed(data: bytes) -> None:
        shutil.rmtree(bundle, ignore_errors=True)
        (bundle / "rootfs" / "opt" / "x").mkdir(parents=True)
        given = {"state": json.dumps(STATE).encode(), "config": json.dumps(HOOKED).encode(), what: data}
        arguments = _words(given.get("arguments", json.dumps(ARGUMENTS).encode()), folder)
        config = given["config"]
        if config.startswith(b"{") and len(config) > len("{}"):
            # The engine names the root file system; the tenant does not.
            config = b'{"root":{"path":"rootfs"},' + config[1:]
        (bundle / "config.json").write_bytes(config)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _HOOK, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"},
        )
        _, said = await process.communicate(given["state"].replace(b"/BUNDLE", str(bundle).encode()))
        if b"Traceback" in said or process.returncode not in {0, 1} or len(said) > _LONGEST:
            raise AssertionError(f"exit code {process.returncode}, {len(said)} bytes told: {said[-300:]!r}")
        if process.returncode:
            raise Refused(said.decode(errors="replace"))

    yield feed


def _words(data: bytes, folder: Path) -> list[str]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused("the document is not a list of words") from error
    if not isinstance(found, list):
        raise Refused("the document is not a list of words")
    words = [str(word).replace("/FOLDER", str(folder)) for word in found]
    if any("\0" in word or len(word) > 100_000 for word in words):
        raise Refused("no program can be told")
    for word in words:
        try:
            os.fsencode(word)
        except UnicodeEncodeError as error:
            raise Refused("no program can be told") from error
    return words


def _response() -> bytes:
    answer = pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "0"}, annotations={"cdi.k8s.io/x": "a/b=c"})
    answer.cdi_devices.add(name="a/b=c")
    answer.mounts.add(container_path="/var/run/nvidia-container-devices/0", host_path="/dev/null")
    return answer.SerializeToString()


@contextlib.asynccontextmanager
async def _answer(folder: Path) -> AsyncIterator[Feed]:
    made = _Bundle(folder)
    valid = json.dumps(by_environment()).encode()

    async def feed(data: bytes) -> None:
        document = checkpoint()
        document["Data"]["PodDeviceEntries"][0]["AllocResp"] = base64.b64encode(data).decode()
        made.checkpoint.write_text(json.dumps(document))
        made.config.write_bytes(valid)
        made.create()

    yield feed


def _hooked(name: str, what: str, document: Any, *, documents: bool = True) -> Door:
    return Door(
        name=name,
        opened=lambda folder: _hook(folder, what),
        specimens=((what, document),),
        documents=documents,
        refusals=(Refused,),
        programs=(_NO_RUNTIME, sys.executable),
        sample=16,
    )


DOORS: Final = (
    Door(
        name="config.json of a container",
        opened=_opened(lambda made: made.config),
        specimens=(("annotations", config_json()), ("environment", by_environment())),
        refusals=(Refused,),
        programs=(_NO_RUNTIME, sys.executable),
        sample=120,
    ),
    Door(
        name="config.json, the long way",
        every=3,
        opened=_opened(lambda made: made.config, renews=True),
        specimens=(("environment", by_environment()),),
        values=hostile.TEXTS,  # shapes meet the same reader by the short way
        documents=False,
        refusals=(Refused,),
        programs=(_NO_RUNTIME, sys.executable),
        sample=120,
    ),
    Door(
        name="CDI spec given to the shim",
        opened=_opened(lambda made: made.folder / "cdi" / "a.json"),
        specimens=(("spec", SPEC),),
        refusals=(Refused,),
        programs=(_NO_RUNTIME, sys.executable),
        sample=60,
    ),
    Door(
        name="kubelet's checkpoint",
        opened=_opened(lambda made: made.checkpoint),
        specimens=(("checkpoint", checkpoint()),),
        refusals=(Refused,),
        programs=(_NO_RUNTIME, sys.executable),
        sample=80,
    ),
    Door(
        name="answer in the kubelet's checkpoint",
        opened=_answer,
        binary=(("answer", _response()),),
        refusals=(Refused,),
        programs=(_NO_RUNTIME, sys.executable),
    ),
    Door(
        name="cache of the shim",
        opened=_cache,
        specimens=(("cache", CACHE),),
        refusals=(Refused,),
        programs=(_NO_RUNTIME,),
        sample=80,
    ),
    Door(
        name="runtime.json",
        opened=_policy,
        specimens=(("policy", _policy_document()),),
        refusals=(Refused,),
        programs=(ANY,),  # the operator names the runtime
        sample=80,
    ),
    _hooked("state given to the hook", "state", STATE),
    _hooked("config.json given to the hook", "config", HOOKED),
    _hooked("arguments of the hook", "arguments", ARGUMENTS, documents=False),
)
