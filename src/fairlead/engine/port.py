"""Declares the port to container engines; podman and the fake implement it, held to one contract suite.

A container is started in two steps, as OCI runtimes do: `create` makes the sandbox (namespaces, cgroup, device rules,
mounts) with the process held before its first instruction, `start` lets it go. Between the two the kernel's rules can
be read back. Names are given by the caller and unique, so every act is idempotent across a crash of ours.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from fairlead.model.container.output import LogQuery
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions

USER_IDS: Final = 65536
"""How many users and groups a user namespace has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """One bind mount from the host."""

    host_path: str
    container_path: str
    is_read_only: bool = False
    is_device: bool = False
    """Whether it is a device node that the container may open."""
    is_untrusted: bool = False
    """Whether containers write what is in it: set-uid bits and device nodes have no effect there (nosuid, nodev)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of the host that leads into a container."""

    host_port: int
    container_port: int
    protocol: str = "tcp"
    """`tcp`, `udp` or `sctp`."""
    host_ip: str = ""
    """Address of the host that listens; empty: all of them."""


class NetworkMode(enum.Enum):
    """What a container sees of networks, where that is not the engine's own choice."""

    NONE = "none"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What to create."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    """Replaces the image's entrypoint (Kubernetes `command`); empty: the image's own."""
    args: tuple[str, ...] = ()
    """Replaces the image's command (Kubernetes `args`); empty: the image's own, unless `command` is given."""
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that no command line and none of Fairlead's records may show, a line each. None is in `env` as well."""
    labels: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    user: str | None = None
    is_root_read_only: bool = False
    may_gain_privileges: bool = True
    """Whether a program with set-uid or file capabilities gives its process more than its parent has."""
    dropped_capabilities: tuple[str, ...] = ()
    """Names as Kubernetes has them, without `CAP_`; `ALL` for all."""
    cdi_devices: tuple[str, ...] = ()
    """Qualified names, `vendor/class=name`."""
    binds: tuple[Bind, ...] = ()
    device_nodes: tuple[tuple[str, str, str], ...] = ()
    """(host path, container path, permissions) from plugins that answer with DeviceSpecs."""
    cpu_limit: float | None = None
    """CPUs, 0.5 is half of one."""
    memory_limit_bytes: int | None = None
    network_of: str | None = None
    """Name of the container whose network namespace and host name are joined; None: its own."""
    hostname: str | None = None
    ports: tuple[Port, ...] = ()
    """Only of a container that owns its network namespace."""
    shm_bytes: int | None = None
    """Size of /dev/shm; None: the engine's own, 64 MB."""
    tty: bool = False
    stdin: bool = False
    network: NetworkMode | None = None
    """None: the engine's own, as it is configured. Nothing where `network_of` is given."""
    shares_host_ipc: bool = False
    ipc_of: str | None = None
    """Name of the container whose shared memory and semaphores are joined; None: its own, or the host's."""
    ulimits: tuple[tuple[str, int, int], ...] = ()
    """(name, soft, hard) as setrlimit(2) has them, -1 for none; they go before the engine's own."""
    network_name: str | None = None
    """Network of `Networks` that it is in, under its host name; nothing where `network_of` or `network` is given."""
    hosts: tuple[tuple[str, str], ...] = ()
    """(address, name): more lines of /etc/hosts; nothing where `network_of` is given."""
    dns: tuple[str, ...] = ()
    """Addresses of name servers; none: the engine's own. Nothing where `network_of` is given."""
    dns_searches: tuple[str, ...] = ()
    """Domains that short names are looked up in; none: the engine's own. Nothing where `network_of` is given."""
    dns_options: tuple[str, ...] = ()
    """Options of the resolver, `ndots:2`, beside the engine's own. Nothing where `network_of` is given."""
    processes_of: str | None = None
    """Name of the container whose process namespace is joined; None: a namespace of its own."""
    groups: tuple[str, ...] = ()
    """More groups of its processes, by number or by name in the image."""
    stop_signal: str = ""
    """What `stop` sends first, `SIGUSR1`; empty: the image's own, else SIGTERM."""
    runtime: str = ""
    """Name of the OCI runtime, as the engine is configured; empty: the engine's own. With `network_of`, that container
    has the same, and both are in its sandbox."""
    passes_driver_calls: bool = False
    """Whether a sandbox passes calls on to NVIDIA's driver for containers that join it later; only with `runtime`."""
    first_user_id: int | None = None
    """User and group of the host that 0 to 65535 inside count from, in a user namespace; None: the host's own ids. With
    `network_of`, that container has the same."""


class ContainerPhase(enum.Enum):
    """Where a container is."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """What the engine says of one container."""

    engine: str
    """Which engine, as `EngineInfo.name`."""
    id: str
    name: str
    phase: ContainerPhase
    labels: Mapping[str, str]
    image: str
    pid: int | None = None
    """Host pid of the container's first process while created or running."""
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: float | None = None
    """Unix seconds."""
    finished_at: float | None = None
    env: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """Whole environment of the first process, the image's part in it; None: not known without asking."""

    @property
    def container_id(self) -> str:
        """Return what a pod's status calls it, `podman://team_train_main_0`: its name, which the engine takes too."""
        return f"{self.engine}://{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the installed engine can do."""

    name: str
    version: str
    runtime: str
    """`runc`, `crun`: the OCI runtime really used."""
    cdi_ceiling: str
    """Newest CDI version the engine is known to read, `0.5.0`."""
    cgroup_version: int
    notes: tuple[str, ...] = ()
    """Oddities of this machine that were detected and worked around, for doctor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What `doctor` and other verbs say of an engine, in its own commands; `{name}` is a container's name."""

    too_old: str
    """What to do where its CDI is too old."""
    no_answer: str
    """What to do where it did not say what it is."""
    no_list: str
    """What to do where it did not list its containers."""
    broken: str
    """What is wrong with a container that `MachineEngine.find_broken` names."""
    broken_why: str
    """What such a container spoils."""
    broken_fix: str
    """How to remove it."""
    list_labelled: str
    """Lists the containers that run with a label; `{label}` is its key and value, joined by `=`."""


class ExecSession(Protocol):
    """One process run beside a container's own, with its streams."""

    async def read(self) -> bytes:
        """Return the next output, standard error as `ErrorOutput` where there is no terminal; b"" at its end."""
        ...

    async def write(self, data: bytes) -> None:
        """Feed its standard input; b"" closes it."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set its terminal's size; nothing without a terminal."""
        ...

    async def wait(self) -> int:
        """Return its exit code."""
        ...

    async def close(self) -> None:
        """End the session; the process is killed if it still runs. Idempotent."""
        ...


class Engine(Protocol):
    """Containers on this machine."""

    async def create(self, spec: ContainerSpec) -> ContainerState:
        """Create the sandbox with its process held; returns with `pid` set.

        Raises: NotFound (`ImageNotFound`), Conflict (`ContainerExists`), Invalid (`CDIUnresolvable`, …), Unavailable.
        """
        ...

    async def start(self, name: str) -> None:
        """Let the held process go; a running container is left as it is."""
        ...

    async def stop(self, name: str, *, grace_s: float) -> None:
        """Its stop signal, then SIGKILL after `grace_s`; returns when it is down. Unknown names are not errors."""
        ...

    async def remove(self, name: str) -> None:
        """Kill it if need be and forget it; unknown names are not errors."""
        ...

    async def list_containers(self, labels: Mapping[str, str]) -> tuple[ContainerState, ...]:
        """Return all containers, ended ones too, that carry every one of `labels` ("" matches any value)."""
        ...

    def watch_changes(self) -> AsyncGenerator[str, None]:
        """Yield the name of a container whenever it started, ended or was removed, by whomever; never ends."""
        ...

    def logs(self, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
        """Yield output, standard error as `ErrorOutput`; with `follow` to the last byte of a container that ends.

        Raises: NotFound.
        """
        ...

    async def exec(
        self, name: str, argv: tuple[str, ...], *, tty: bool, stdin: bool, options: ProcessOptions = AS_THE_CONTAINER
    ) -> ExecSession:
        """Run one more process in a running container; an unknown user or folder ends it with a code of the engine's.

        Raises: NotFound, Conflict (`ContainerNotRunning`).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an image is built of a folder."""

    containerfile: Path | None = None
    """None: the one in the folder."""
    args: Mapping[str, str] = field(default_factory=dict)
    """Values of the Containerfile's `ARG`s; other accounts of the machine see them among its processes."""
    target: str = ""
    """Stage that is the image; empty: the last one."""


PLAIN: Final = Recipe()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image on this machine."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network of containers: a bridge on the host."""

    name: str
    interface: str
    """Name of the bridge, which is there while a container is in the network."""
    subnets: tuple[str, ...]
    """CIDRs, of IPv4 and IPv6."""
    gateways: tuple[str, ...]
    """The host's address in each of the subnets."""
    labels: Mapping[str, str]


class Networks(Protocol):
    """Networks that containers can be put into."""

    async def list_networks(self) -> tuple[Network, ...]:
        """Return all bridges of the engine, those of others too."""
        ...

    async def create_network(
        self, name: str, subnets: tuple[str, ...], *, labels: Mapping[str, str], resolves_names: bool
    ) -> Network:
        """Make a network.

        Args:    resolves_names: the host's address in it answers for the containers' names, and for all others.
        Raises:  Conflict (`NetworkExists`): its name or a subnet is taken; Unavailable (`NetworkUnusable`): none can be
                 made here.
        """
        ...

    async def remove_network(self, name: str) -> None:
        """Remove one; unknown names are not errors. Raises: Conflict (`NetworkInUse`): a container is in it."""
        ...


class Images(Protocol):
    """Images on this machine, and what the engine is."""

    async def info(self) -> EngineInfo:
        """Describe the engine. Raises: Unavailable: not installed, or too old to inject CDI devices (fails closed)."""
        ...

    async def list_images(self) -> tuple[Image, ...]:
        """Return all images."""
        ...

    async def exists(self, name: str) -> bool:
        """Return whether `name` can be run without a pull."""
        ...

    async def environment(self, name: str) -> Mapping[str, str]:
        """Return the variables an image sets for its containers; no pull. Raises: NotFound (`ImageNotFound`)."""
        ...

    async def pull(self, name: str, *, authfile: Path | None = None) -> None:
        """Fetch it; what is here already is asked for again.

        Args:   authfile: credentials (containers-auth.json(5)), and no others; None: the engine's own.
        Raises: NotFound (`ImageNotFound`): or it is not for these credentials; Unavailable (`RegistryUnreachable`).
        """
        ...

    async def import_root(self, source: Path, name: str, *, command: tuple[str, ...] = ()) -> Image:
        """Make an image of a root file system: a folder, or a tar of one (also .gz, .xz, .zst).

        Raises: Invalid: `source` is neither.
        """
        ...

    def build(self, context: Path, name: str, recipe: Recipe = PLAIN) -> AsyncGenerator[bytes, None]:
        """Build from a Containerfile, yielding its output. Raises: Invalid (`BuildFailed`, `BuildArgInvalid`)."""
        ...

    async def remove_image(self, name: str) -> None:
        """Remove a name; unknown names are not errors."""
        ...


class IdentifiedImages(Images, Protocol):
    """Images that are identified by their content, whatever their names."""

    async def identity(self, name: str) -> str | None:
        """Return the id of an image that can be run without a pull; None: there is none."""
        ...


class ImageStore(Protocol):
    """Images as things that are named, moved and thrown away, for those who keep them."""

    async def tag(self, name: str, new: str) -> None:
        """Give an image one more name. Raises: NotFound (`ImageNotFound`); Invalid: not a reference."""
        ...

    def pull_lines(self, name: str) -> AsyncGenerator[bytes, None]:
        """Fetch an image, yielding what the engine says of its progress. Raises: as `Images.pull`."""
        ...

    async def save(self, names: tuple[str, ...]) -> ExecSession:
        """Write images as one archive that docker reads too: the session's output. Raises: NotFound."""
        ...

    async def load(self) -> ExecSession:
        """Read an archive of images, the session's input; its output says which they were."""
        ...

    async def prune_images(self, *, every: bool) -> tuple[str, ...]:
        """Remove images without a name, with `every` also those that no container is made from; returns their ids."""
        ...
