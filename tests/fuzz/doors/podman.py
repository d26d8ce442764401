"""From a pod and a plugin's answer to podman's command line: no word of either becomes an option."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from fairlead.engine import port
from fairlead.engine.podman import args
from fairlead.engine.podman import host as podman_host
from fairlead.engine.podman import json as podman_json
from fairlead.engine.podman.service import request
from fairlead.node.deviceplugin import podresources
from fairlead.node.kubelet import spec
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.kubelet.devices.checkpoint import Grant
from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core, manifest
from fairlead.wire.proto import deviceplugin_pb2 as pb
from fairlead.wire.proto import podresources_pb2
from tests.fuzz import hostile
from tests.fuzz.doors.text import OURS, POD, plain
from tests.fuzz.harness import Door, Feed
from tests.unit.node.kubelet.fakeplugin import RESOURCE, Plugin
from tests.unit.node.kubelet.test_devicemanager import World, _pod, _world

_JOINED: Final = re.compile(
    r"--(?:name|log-driver|log-opt|pull|http-proxy|ulimit|network|hostname|label|annotation|env|device|volume|mount"
    r"|cpus|memory|memory-swap|publish|shm-size|read-only-tmpfs|security-opt|cap-drop|entrypoint|workdir|user|tail|log-level)=.*",
    re.DOTALL,
)
_FLAGS: Final = frozenset(
    {"create", "exec", "logs", "--no-healthcheck", "--read-only", "--tty", "--interactive", "--follow", "--timestamps"}
)
_HOST: Final = podman_host.Host(
    info=port.EngineInfo(name="podman", version="4.3.1", runtime="runc", cdi_ceiling="0.5.0", cgroup_version=2),
    conmon="/usr/bin/conmon",
    globals=(),
    ulimits=(),
    network="none",
    may_fall_back=False,
    pid_folder=Path("/x"),
    bundle_folder=Path("/x"),
)
_IDENTITY: Final = spec.Identity(node="n", home="h")
ANSWER: Final = {
    "envs": {"NVIDIA_VISIBLE_DEVICES": "0"},
    "mounts": [{"container_path": "/usr/lib/x", "host_path": "/usr/lib/x", "read_only": True}],
    "devices": [{"container_path": "/dev/nvidia0", "host_path": "/dev/nvidia0", "permissions": "rw"}],
    "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0", "other": "y"},
    "cdi_devices": [{"name": "nvidia.com/gpu=0"}],
}
LISTED: Final = {"devices": [{"ID": "g0", "health": "Healthy", "topology": {"nodes": [{"ID": 0}]}}]}


def assert_no_option(argv: list[str]) -> None:
    """Raises AssertionError for a word before `--` that is neither an option we know nor joined to one."""
    end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[:end]:
        if word not in _FLAGS and _JOINED.fullmatch(word) is None:
            raise AssertionError(f"became an option of podman: {word!r:.200}")


def _container(pod: core.Pod, item: core.Container, grants: tuple[Grant, ...]) -> port.ContainerSpec:
    volumes = {volume.name: Path(volume.host_path.path if volume.host_path else "/e") for volume in pod.spec.volumes}
    names = spec.cdi_names(item, grants, has_variants=False, defined=("nvidia.com/gpu=0", "fairlead.dev/gpu=0"))
    return spec.container_spec(
        pod, item, 0, identity=_IDENTITY, grants=grants, volumes=volumes, network_of=None, cdi_devices=names
    )


def _argv(made: port.ContainerSpec) -> list[str]:
    return args.create(made, _HOST, network="none", log_max_mib=10)


def _asked(made: port.ContainerSpec) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.encode(made, _HOST, network="none", log_max_mib=10))
    return found


def _parsed(data: bytes) -> list[core.Pod]:
    return [one.item for one in manifest.parse(data, kinds=(core.Pod,)) if isinstance(one.item, core.Pod)]


def _pods(data: bytes, _: Path) -> None:
    for pod in _parsed(data):
        admitted = admission.admit(pod)
        for item in admitted.spec.containers:
            made = _container(admitted, item, ())
            argv, asked = _argv(made), _asked(made)
            assert_no_option(argv)
            if argv[argv.index("--") + 1] != item.image:
                raise AssertionError("another image")
            if tuple(argv[argv.index("--") + 2 :]) != item.args:
                raise AssertionError("other arguments")
            if (asked["image"], asked.get("command", [])) != (item.image, list(item.args)):
                raise AssertionError("the service is asked for another container")
            for variable in item.env:
                if f"--env={variable.name}={variable.value}" not in argv:
                    raise AssertionError("another variable")
            if asked.get("env", {}) != made.env:
                raise AssertionError("the service is asked for other variables")


class Answering(Plugin):
    """A plugin whose answers are written by an attacker."""

    def __init__(self) -> None:
        super().__init__("g0", prefers=("g0",))
        self.said = pb.AllocateResponse()

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        del request
        return self.said


def _message(data: bytes, made: Any) -> Any:
    """Read JSON into a message; what no message can hold was refused by protobuf itself."""
    try:
        return json_format.Parse(data, made)
    except (json_format.ParseError, ValueError, TypeError, RecursionError, AttributeError) as error:
        raise Unsayable from error


class Unsayable(Exception):
    """No plugin can say it."""


@contextlib.asynccontextmanager
async def _allocate(folder: Path) -> AsyncIterator[Feed]:
    plugin = Answering()
    async with _world(folder) as world, world.plugged(plugin):

        async def feed(data: bytes) -> None:
            answer = _message(data, pb.ContainerAllocateResponse())
            plugin.said = pb.AllocateResponse(container_responses=[answer])
            await _given(world)

        yield feed


async def _given(world: World) -> None:
    """Allocate for a pod, look at what podman would be told, read the checkpoint anew, give everything back."""
    pod = _pod()
    try:
        await world.allocate(pod)
        grants = world.manager.held(pod.metadata.uid)
        if checkpoint.Checkpoint(world.state).load() != grants:
            raise AssertionError("the checkpoint says otherwise")
        item = core.Container(name="main0", image="localhost/x:1", args=("a",))
        made = _container(pod, item, grants)
        assert_no_option(_argv(made))
        if [one["path"] for one in _asked(made).get("devices", [])] != args.devices(made):
            raise AssertionError("the service is asked for other devices")
    finally:
        await world.manager.free(pod.metadata.uid)


@contextlib.asynccontextmanager
async def _list(folder: Path) -> AsyncIterator[Feed]:
    plugin = Plugin("g0")
    async with _world(folder) as world, world.plugged(plugin):

        async def feed(data: bytes) -> None:
            found = _message(data, pb.ListAndWatchResponse())
            wanted = {one.ID: one.health == "Healthy" for one in found.devices}
            await plugin.change(wanted)
            async with asyncio.timeout(10):
                await world.until_capacity(len(wanted), sum(wanted.values()))
            if any(wanted.values()):
                await _given(world)

        yield feed


@contextlib.asynccontextmanager
async def _register(folder: Path) -> AsyncIterator[Feed]:
    plugin = Plugin("g0")
    async with _world(folder) as world, plugin.serve(world.sockets / "p.sock"):

        async def feed(data: bytes) -> None:
            request = _message(data, pb.RegisterRequest())
            if (world.sockets / "p.sock").name == request.endpoint or "/" in request.endpoint or not request.endpoint:
                await world.register(request)

        yield feed


def _holdings(data: bytes, _: Path) -> None:
    podresources.parse_holdings(_message(data, podresources_pb2.ListPodResourcesResponse()))


HOLDINGS: Final = {
    "pod_resources": [
        {
            "name": "p",
            "namespace": "default",
            "containers": [
                {
                    "name": "c",
                    "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": ["g0"]}],
                }
            ],
        }
    ]
}


def _container_rows(data: bytes, _: Path) -> None:
    for row in podman_json.decode(data, list[podman_json.Container], what="podman inspect"):
        podman_json.container_state(row, oom_killed=False)


def _image_rows(data: bytes, _: Path) -> None:
    podman_json.images(podman_json.decode(data, list[podman_json.ImageRow], what="podman images"))


IMAGES: Final = [{"Id": "a", "Names": ["localhost/x:1"], "Size": 1, "Created": 1}]
ROWS: Final = [
    {
        "Id": "a",
        "Names": ["x"],
        "State": "running",
        "Labels": {"a": "b"},
        "Image": "localhost/x:1",
        "Pid": 1,
        "ExitCode": 0,
        "StartedAt": 1700000000,
        "ExitedAt": 1700000000,
    }
]
GRANTS: Final = [
    {
        "pod_uid": "u",
        "container": "main",
        "resource": RESOURCE,
        "device_ids": ["g0"],
        "response": "",
        "must_pre_start": False,
    }
]


def _checkpoint(data: bytes, folder: Path) -> None:
    for path in folder.glob(f"{checkpoint.NAME}*"):
        path.unlink()
    # With the right checksum, so that what is in it is looked at.
    head = {"version": checkpoint.VERSION, "checksum": hashlib.sha256(data).hexdigest()}
    (folder / checkpoint.NAME).write_bytes(json.dumps(head).encode()[:-1] + b',"grants":' + data + b"}")
    grants = checkpoint.Checkpoint(folder).load()
    if grants is None and not list(folder.glob(f"{checkpoint.NAME}.damaged-*")):
        raise AssertionError("a damaged checkpoint was not kept")
    if grants:
        spec.merged_answer(grants)


DOORS: Final = (
    Door(name="pod to podman", opened=plain(_pods), specimens=(("pod", POD),), refusals=OURS, sample=120),
    Door(
        name="plugin's Allocate",
        opened=_allocate,
        specimens=(("answer", ANSWER),),
        refusals=(*OURS, Unsayable),
    ),
    Door(
        name="plugin's ListAndWatch",
        opened=_list,
        specimens=(("list", LISTED),),
        values=(*hostile.TEXTS, *hostile.SHAPES),  # gRPC itself ends a stream with a message of more than 4 MiB
        refusals=(*OURS, Unsayable),
    ),
    Door(
        name="plugin's Register",
        opened=_register,
        specimens=(
            ("request", {"version": "v1beta1", "endpoint": "p.sock", "resource_name": RESOURCE, "options": {}}),
        ),
        refusals=(*OURS, Unsayable),
        sample=60,
    ),
    Door(
        name="kubelet's PodResources",
        opened=plain(_holdings),
        specimens=(("answer", HOLDINGS),),
        refusals=(*OURS, Unsayable),
    ),
    Door(name="our checkpoint", opened=plain(_checkpoint), specimens=(("grants", GRANTS),), refusals=OURS),
    Door(name="podman's containers", opened=plain(_container_rows), specimens=(("rows", ROWS),), refusals=OURS),
    Door(name="podman's images", opened=plain(_image_rows), specimens=(("rows", IMAGES),), refusals=OURS),
)
