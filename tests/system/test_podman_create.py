"""Podman's service makes of a request the container that its command makes, for all that a spec can say."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import busyboximage
import pytest

from fairlead import command, settings
from fairlead.engine import port
from fairlead.engine.podman import args, cli
from fairlead.engine.podman import errors as podman_errors
from fairlead.engine.podman import host as podman_host
from fairlead.engine.podman.service import request, service
from fairlead.wire.kubernetes import names
from tests import podmanhere
from tests.contract.test_engine_contract import NO_PODMAN

T = TypeVar("T", bound=Callable[..., Any])
NETWORK: Final = f"ft-{secrets.token_hex(4)}"

OWNER: Final = "OWNER"
"""Stands for a container whose namespaces are joined."""
_NODE: Final = port.Bind(host_path="/dev/null", container_path="/dev/node", is_device=True)
CASES: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "the image's own command": {"args": ()},
    "a command and arguments": {"command": ("/bin/sh", "-c"), "args": ("sleep 60 # --name=evil",)},
    "a command alone": {"command": ("/bin/sleep", "60"), "args": ()},
    "an init": {"command": ("/sbin/init",), "args": ()},
    "variables": {"env": {"A": "b c=d", "EMPTY": "", "PATH": "/bin", "N": "a\nb"}, "secret_env": {"S": "x y"}},
    "labels": {"labels": {"a": "b=c", names.HOME: '{"a": [1, "b"]}', names.POD_NAME: "ä"}},
    "folder and user": {"working_dir": "/tmp", "user": "1:2"},
    "a user of its own group": {"user": "7"},
    "a root that is not written": {"is_root_read_only": True},
    "no rights": {"may_gain_privileges": False, "dropped_capabilities": ("ALL",)},
    "fewer rights": {"dropped_capabilities": ("KILL", "CHOWN")},
    "binds": {
        "binds": (
            port.Bind(host_path="/tmp", container_path="/a"),
            port.Bind(host_path="/tmp", container_path="/b", is_read_only=True),
            _NODE,
        )
    },
    "binds with colons": {
        "binds": (
            port.Bind(host_path="/tmp", container_path="/a:1"),
            port.Bind(host_path="/tmp", container_path="/b:1", is_read_only=True),
            dataclasses.replace(_NODE, container_path="/dev/node:1"),
        )
    },
    "a bind twice": {
        "binds": (
            port.Bind(host_path="/tmp", container_path="/a"),
            _NODE,
            port.Bind(host_path="/tmp", container_path="/a"),
            dataclasses.replace(_NODE, container_path="/dev/node:1"),
            dataclasses.replace(_NODE, container_path="/dev/node:1"),
        )
    },
    "two binds at one place": {
        "binds": (
            port.Bind(host_path="/tmp", container_path="/a"),
            port.Bind(host_path="/usr", container_path="/a", is_read_only=True),
        )
    },
    "a bind once for reading and once for writing": {
        "binds": (
            port.Bind(host_path="/tmp", container_path="/a"),
            port.Bind(host_path="/tmp", container_path="/a", is_read_only=True),
        )
    },
    "a bind at a place written in two ways": {
        "binds": (
            port.Bind(host_path="/tmp", container_path="/a"),
            port.Bind(host_path="/tmp", container_path="/a/"),
        )
    },
    "devices twice": {
        "device_nodes": (("/dev/null", "/dev/node", "rw"), ("/dev/null", "/dev/node", "rw")),
        "cdi_devices": ("fairlead-test.dev/create=0", "fairlead-test.dev/create=0"),
    },
    "a node that two devices have": {
        "device_nodes": (("/dev/null", "/dev/node", "rw"), ("/dev/zero", "/dev/node", "r")),
    },
    "a bind of nothing": {"binds": (port.Bind(host_path="/no/such", container_path="/a"),)},
    "device nodes": {"device_nodes": (("/dev/null", "/dev/node", "rw"), ("/dev/zero", "/dev/other", "r"))},
    "a device node of nothing": {"device_nodes": (("/no/such", "/dev/node", "rw"),)},
    "a CDI device": {"cdi_devices": ("fairlead-test.dev/create=0",)},
    "a CDI device that nobody defines": {"cdi_devices": ("fairlead-test.dev/create=7",)},
    "limits": {"cpu_limit": 0.333333333, "memory_limit_bytes": 32 << 20},
    "less processor than the kernel gives": {"cpu_limit": 0.001},
    "shared memory": {"shm_bytes": 1 << 20},
    "the host's IPC": {"shares_host_ipc": True, "shm_bytes": 1 << 20},
    "a host name": {"hostname": "pod-7"},
    "lines of its hosts": {"hosts": (("10.9.8.7", "db.local"), ("fd00::1", "six.local"))},
    "the host's network": {"network": port.NetworkMode.HOST, "hostname": "pod-7"},
    "no network": {"network": port.NetworkMode.NONE, "hostname": "pod-7"},
    "ports of no network": {"ports": (port.Port(host_port=18091, container_port=80),)},
    "a terminal": {"tty": True, "stdin": True},
    "an input": {"stdin": True},
    "limits of resources": {"ulimits": (("nofile", 100, 200), ("core", 0, 0), ("stack", -1, -1))},
    "a user namespace": {"first_user_id": 100_000},
    "another's network": {"network_of": OWNER, "hostname": "pod-7"},
    "another's network and users": {"network_of": OWNER, "first_user_id": 100_000},
    "groups": {"groups": ("44", "1234"), "user": "1000:1000"},
    "a stop signal": {"stop_signal": "SIGUSR1"},
    "a stop signal of its own number": {"stop_signal": "SIGRTMIN+3"},
    "another's processes": {"network_of": OWNER, "processes_of": OWNER},
    "another's shared memory": {"network_of": OWNER, "ipc_of": OWNER},
    "no such image": {"image": "localhost/fairlead-test/nothing:1"},
    "no such network": {"network_name": "fairlead-test-nothing", "hostname": "pod-7"},
}
BRIDGES: Final[dict[str, dict[str, Any]]] = {
    "ports of a bridge": {
        "hostname": "pod-7",
        "ports": (
            port.Port(host_port=18092, container_port=80),
            port.Port(host_port=18093, container_port=81, protocol="udp", host_ip="127.0.0.1"),
        ),
    },
    "a network by its name": {"network_name": NETWORK, "hostname": "pod-7"},
    "name servers": {"network_name": NETWORK, "hostname": "pod-7", "dns": ("10.0.0.53", "fd00::53")},
    "a resolver": {
        "network_name": NETWORK,
        "dns": ("10.0.0.53",),
        "dns_searches": ("lab.local", "lab."),
        "dns_options": ("ndots:2", "rotate"),
    },
}
REFUSED: Final = frozenset(
    {
        "a bind of nothing",
        "a device node of nothing",
        "a CDI device that nobody defines",
        "a bind at a place written in two ways",
        "a bind once for reading and once for writing",
        "no such image",
        "no such network",
        "two binds at one place",
    }
)
"""Cases of which no container is made, for the same reason."""
EVERYTHING: Final = (
    "a command and arguments",
    "variables",
    "labels",
    "folder and user",
    "a root that is not written",
    "no rights",
    "binds",
    "device nodes",
    "a CDI device",
    "limits",
    "shared memory",
    "a host name",
    "a terminal",
    "limits of resources",
    "a user namespace",
)


def needs_podman(test: T) -> T:
    marked: T = pytest.mark.podman(pytest.mark.skipif(bool(NO_PODMAN), reason=NO_PODMAN)(test))
    return marked


def test_every_field_of_a_spec_is_in_a_case() -> None:
    said = {"name", "image", *(field for case in (*CASES.values(), *BRIDGES.values()) for field in case)}
    # Made by command alone: podman's service ignores the runtime of a request, and the handler alone reads the other.
    said |= {"runtime", "passes_driver_calls"}
    assert {field.name for field in dataclasses.fields(port.ContainerSpec)} - said == set()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    changes = ('ENTRYPOINT ["/bin/sh"]', 'CMD ["-c", "sleep 60"]', "VOLUME /data", "ENV I=1")
    with busyboximage.imported(tmp_path_factory.mktemp("create"), ("sh", "sleep"), changes=changes) as name:
        yield name


@pytest.fixture(scope="module")
def cdi() -> Iterator[None]:
    folder = Path("/etc/cdi")
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    file = folder / f"fairlead-test-{secrets.token_hex(4)}.json"
    edits = {"env": ["CDI=1"], "deviceNodes": [{"path": "/dev/cdi", "hostPath": "/dev/null"}]}
    devices = [{"name": "0", "containerEdits": edits}]
    file.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "fairlead-test.dev/create", "devices": devices}))
    yield
    file.unlink()
    if is_new:
        folder.rmdir()


@dataclass(frozen=True)
class Made:
    """What podman made of a spec, without what no two containers share."""

    refusal: str
    """Our reason for what podman said; "": it made it."""
    inspected: Any
    bundle: Any
    initialised: str


class Ways:
    """Creates containers by command and by request."""

    def __init__(self, podman: cli.Podman, one: service.Service, host: podman_host.Host, image: str) -> None:
        self._podman = podman
        self._service = one
        self._host = host
        self._image = image
        self._owner = f"ft-{secrets.token_hex(4)}"

    async def both(self, case: dict[str, Any], *, network: str = "none") -> tuple[Made, Made]:
        """Return what the command makes of a spec, and what the service does."""
        if case.get("network_of") == OWNER:
            case = case | {field: self._owner for field, value in case.items() if value == OWNER}
            own = {key: value for key, value in case.items() if key == "first_user_id"}
            arguments = args.create(self._spec(self._owner, own), self._host, network="none", log_max_mib=0)
            assert (await self._podman.run(*arguments)).code == 0
            assert (await self._podman.run("--runtime", self._host.info.runtime, "start", self._owner)).code == 0
        try:
            return await self._made(case, network, asks=False), await self._made(case, network, asks=True)
        finally:
            await self._podman.run("rm", "--force", "--time=0", "--ignore", "--", self._owner)

    def _spec(self, name: str, case: dict[str, Any]) -> port.ContainerSpec:
        return port.ContainerSpec(**{"name": name, "image": self._image, "args": ("-c", "sleep 60"), **case})

    async def _made(self, case: dict[str, Any], network: str, *, asks: bool) -> Made:
        name = f"ft-{secrets.token_hex(4)}"
        spec = self._spec(name, case)
        try:
            if asks:
                body = request.encode(spec, self._host, network=network, log_max_mib=10)
                answer = await self._service.create(body)
                assert answer is not None
            else:
                arguments = args.create(spec, self._host, network=network, log_max_mib=10)
                argv, lines = self._podman.argv(*arguments), args.env_lines(spec.secret_env)
                done = await asyncio.to_thread(subprocess.run, argv, input=lines, capture_output=True, check=False)
                answer = command.Result(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
            if answer.code != 0:
                return Made(podman_errors.translate("it", "create", answer).reason, None, None, "")
            return await self._record(name, answer.stdout.decode().split()[-1])
        finally:
            await self._podman.run("rm", "--force", "--time=0", "--ignore", "--volumes", "--", name)

    async def _record(self, name: str, identity: str) -> Made:
        (inspected,) = json.loads((await self._podman.run("container", "inspect", name)).stdout)
        result = await self._podman.run("--runtime", self._host.info.runtime, "init", name)
        file = self._host.bundle_folder / identity / "userdata/config.json"
        bundle = json.loads(file.read_text()) if file.exists() else None

        def plain(text: str) -> str:
            text = re.sub(r"overlay/[0-9a-f]{64}|netns-[-0-9a-f]{36}|container_uuid=[0-9a-f]{32}", "RANDOM", text)
            text = text.replace(identity, "ID").replace(identity[:12], "ID").replace(name, "NAME")
            return re.sub(r"[0-9a-f]{64}", "HASH", text)

        said = plain("" if result.code == 0 else result.last_line)
        inspected, bundle = (_sorted(_shared(json.loads(plain(json.dumps(one))))) for one in (inspected, bundle))
        return Made("", inspected, bundle, said)


_OWN: Final = (
    "Binds",
    "Created",
    "CreateCommand",
    "io.kubernetes.cri-o.Created",
    "io.kubernetes.cri-o.TTY",
    "io.podman.annotations.userns",
)
"""When and by which words it was created; "Mounts" once more, with its options in another order; two annotations that
the command writes for other programs of podman's."""


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shared(one) for key, one in value.items() if key not in _OWN}
    return [_shared(one) for one in value] if isinstance(value, list) else value


def _sorted(value: Any) -> Any:
    """Sort every list: variables, mounts and options come in another order with each container."""
    if isinstance(value, dict):
        return {key: _sorted(one) for key, one in value.items() if one not in (None, {})}
    return sorted((_sorted(one) for one in value), key=json.dumps) if isinstance(value, list) else value


@pytest.fixture
async def ways(image: str, cdi: None) -> AsyncIterator[Ways]:
    engine = podmanhere.engine(settings.EngineSettings(network="none"))
    podman = engine._podman
    async with service.opened(podman) as one:
        yield Ways(podman, one, await podman.host(), image)


@pytest.fixture
async def bridge() -> AsyncIterator[None]:
    podman = podmanhere.engine(settings.EngineSettings())._podman
    if (await podman.host()).network != "bridge":
        pytest.skip("podman makes no bridges here")
    assert (await podman.run("network", "create", NETWORK)).code == 0
    yield
    assert (await podman.run("network", "rm", NETWORK)).code == 0


@needs_podman
async def test_a_request_that_says_everything_makes_what_the_command_makes(ways: Ways) -> None:
    case: dict[str, Any] = {}
    for name in EVERYTHING:
        case |= CASES[name]

    by_command, by_request = await ways.both(case)

    assert by_request == by_command
    assert by_request.refusal == ""


@needs_podman
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_a_request_makes_what_the_command_makes(ways: Ways, case: str) -> None:
    by_command, by_request = await ways.both(CASES[case])

    assert by_request == by_command
    assert (by_request.bundle is None) == (case in REFUSED)


@needs_podman
@pytest.mark.slow
@pytest.mark.parametrize("case", BRIDGES)
async def test_a_request_joins_the_network_that_the_command_joins(ways: Ways, bridge: None, case: str) -> None:
    by_command, by_request = await ways.both(BRIDGES[case], network="bridge")

    assert by_request == by_command
    assert by_request.bundle is not None
