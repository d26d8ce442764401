"""A cluster from the first process to the last file: up, down, found again by name, its parts stopped and started.

`up` returns when the node is Ready and pods can be made; a cluster without a node of its own is etcd and an API server,
to which a caller adds what it compares. All a cluster has lies in one folder, `cluster.json` among it:
another process finds it by name and can end it, also after the one that made it was killed. Owner and machine are
remembered by pid and start time. `down` is one kill (see `machine`), so it needs no cooperation from anything inside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from tools.cluster import api, build, component, image, machine

FOLDER: Final = Path("/var/tmp/fairlead-cluster")  # noqa: S108 one folder a machine; names below it are made exclusively
DEFAULT_NAME: Final = "play"
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
_NUMBER: Final = "number"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_NODES: Final = "/api/v1/nodes"


@dataclass(slots=True, kw_only=True)
class Cluster:
    """One cluster; make it with `up`, find it with `find`."""

    name: str
    version: str
    folder: Path
    host: machine.Machine
    """The machine it runs on."""
    owner: machine.Process | None
    """The process it must not outlive; None: whoever ends it."""
    processes: dict[str, machine.Process]
    """Components that were started and not stopped, by name."""

    @property
    def node(self) -> str:
        """The node's name."""
        return self.host.hostname

    @property
    def site(self) -> component.Site:
        """Where its files and addresses are."""
        one = self.host
        return component.Site(
            folder=self.folder, address=one.address, node=self.node, cgroup=one.cgroup, version=self.version
        )

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; works on the host and in the machine."""
        return self.folder / "configs" / "admin.kubeconfig"

    @property
    def device_plugins(self) -> Path:
        """The host's view of kubelet's device-plugin folder, `/var/lib/kubelet/device-plugins` in the machine."""
        return self.host.disk / "var-lib" / "kubelet" / "device-plugins"

    @property
    def cdi(self) -> Path:
        """The host's view of `/var/run/cdi` in the machine."""
        return self.host.disk / "run" / "cdi"

    def api(self) -> api.API:
        """Open a connection as the administrator; the caller closes it."""
        return api.API(self.site.server, self.site.certificates)

    def log(self, name: str) -> Path:
        """Return where a component's output lies."""
        return self.folder / "logs" / f"{name}.log"

    def program(self, name: str) -> str:
        """Return the path of one of the cluster's programs."""
        for folder in self.host.paths:
            if (path := Path(folder) / name).exists():
                return str(path)
        raise errors.RequestError(f"the cluster has no program {name!r}", reason="ProgramUnknown", hint="see build")

    def kubectl(self, *arguments: str) -> tuple[str, ...]:
        """Return a kubectl command line for this cluster."""
        return (self.program("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments)

    def start(self, name: str) -> None:
        """Start a component that does not run."""
        command = component.command(name, self.site)
        self.processes[name] = self.host.start(command, self.log(name))
        self.save()

    def stop(self, name: str, sign: signal.Signals = signal.SIGTERM, *, timeout_s: float = 30) -> None:
        """End a component and wait for it; it does not come back by itself."""
        if not self.processes[name].end(sign, timeout_s=timeout_s):
            message = f"{name} is still there {timeout_s:.0f} s after {sign.name}"
            raise errors.Unavailable(message, reason="StillRunning", hint=f"its log: {self.log(name)}")
        del self.processes[name]
        self.save()

    def restart(self, name: str, sign: signal.Signals = signal.SIGTERM) -> None:
        """Stop and start a component; returns when its process is there, not when it serves."""
        self.stop(name, sign)
        self.start(name)

    def reboot(self) -> None:
        """Cut the power of the whole machine and start it again; returns when its kubelet has reported anew."""
        before = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.host = machine.reboot(self.host)
        self.processes.clear()
        self.save()
        _start_all(self, lambda _: None, prepare=lambda: None)

        def renewed(items: list[api.Object]) -> bool | None:
            return True if any(item["spec"]["renewTime"] > before for item in items) else None

        with self.api() as connection:
            connection.until(_LEASES, renewed, what="the kubelet renewed its lease")

    def load_image(self, archive: Path) -> None:
        """Import an image archive into the container runtime, where pods find it with `imagePullPolicy: Never`."""
        self.host.run("ctr", "-n", "k8s.io", "images", "import", "--no-unpack=false", str(archive))

    def down(self) -> None:
        """End everything and remove every trace; may be called again."""
        machine.shut_down(self.host.number)
        machine.forget(self.folder, self.host.number)
        _drop_common(self.folder)

    def save(self) -> None:
        """Write what another process needs to find and end it."""
        content = dataclasses.asdict(self)
        path = self.folder / "cluster.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, default=str, indent=1))
        partial.rename(path)


# up


def up(
    name: str = DEFAULT_NAME,
    *,
    version: str = build.DEFAULT_VERSION,
    folder: Path = FOLDER,
    paths: tuple[Path, ...],
    owned: bool = False,
    has_node: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Cluster:
    """Bring a cluster up and return when its node is Ready and pods can be made.

    Args:    folder: holds a folder for each cluster; none of the machine's own may cover it.   paths: what
             `build.ensure_programs` returned.   owned: `sweep` ends it once this process is gone.   has_node: False:
             etcd and an API server alone, without controllers, scheduler and kubelet.
    Raises:  RequestError: the name; Conflict: it is taken; Unavailable: something did not come up. Nothing is left.
    """
    if not _NAME.fullmatch(name):
        message = f"cluster name {name!r} is not lower-case letters, digits and dashes, at most 20"
        raise errors.RequestError(message, reason="NameInvalid", hint="choose another")
    home = folder / name
    _take_name(home)
    try:
        number = machine.reserve_number()
        (home / _NUMBER).write_text(f"{number}\n")
        return _bring_up(
            name, home, version=version, paths=paths, number=number, owned=owned, has_node=has_node, say=say
        )
    except BaseException:
        end(name, folder)
        raise


def _take_name(home: Path) -> None:
    while True:
        home.parent.mkdir(parents=True, exist_ok=True)
        try:
            home.mkdir()
        except FileNotFoundError:
            continue  # the last cluster's end took the parent along, this moment
        except FileExistsError as error:
            hint = f"end it: .venv/bin/python -m tools.cluster down --name {home.name}"
            message = f"there is a cluster {home.name!r} in {home.parent}"
            raise errors.Conflict(message, reason="NameTaken", hint=hint) from error
        return


def _bring_up(
    name: str,
    home: Path,
    *,
    version: str,
    paths: tuple[Path, ...],
    number: int,
    owned: bool,
    has_node: bool,
    say: Callable[[str], None],
) -> Cluster:
    clock = _Clock(say)
    (home / "logs").mkdir()
    one = machine.boot(home, hostname=f"{name}-node", paths=tuple(map(str, paths)), number=number)
    owner = machine.Process.of(os.getpid()) if owned else None
    cluster = Cluster(name=name, version=version, folder=home, host=one, owner=owner, processes={})
    cluster.save()
    component.write_files(cluster.site, one.disk)
    clock("machine and certificates")
    if not has_node:
        _start_plane(cluster, clock)
        return cluster
    _start_all(cluster, clock, prepare=lambda: _load_own_images(cluster))
    with cluster.api() as connection:
        connection.until(_NODES, _ready_node, what="the node is Ready")
        clock("node ready")
        connection.until("/api/v1/namespaces/default/serviceaccounts", _any, what="the default service account")
        clock("service account")
    return cluster


def _start_plane(cluster: Cluster, clock: Callable[[str], None]) -> None:
    """Start etcd and the API server, and return once it is ready."""
    for part in ("etcd", "kube-apiserver"):
        cluster.start(part)
    with cluster.api() as connection:
        _until_ready(cluster, connection)
    clock("api server ready")


def _start_all(cluster: Cluster, clock: Callable[[str], None], *, prepare: Callable[[], None]) -> None:
    """Start every component; `prepare` has the container runtime for itself, while the API server starts."""
    for part in ("etcd", "containerd", "kube-apiserver"):
        cluster.start(part)
    _until_there(cluster, "containerd", cluster.host.disk / "run" / "containerd" / "containerd.sock")
    prepare()
    clock("containerd and images")
    with cluster.api() as connection:
        _until_ready(cluster, connection)
    clock("api server ready")
    for part in ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy"):
        cluster.start(part)


class _Clock:
    """Says how long each step took."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last = say, time.monotonic()

    def __call__(self, step: str) -> None:
        now = time.monotonic()
        self._say(f"{now - self._last:5.1f} s  {step}")
        self._last = now


def _load_own_images(cluster: Cluster) -> None:
    for archive, write in (("pause.tar", image.write_pause), ("busybox.tar", image.write_busybox)):
        path = cluster.folder / archive
        write(path)
        cluster.load_image(path)
        path.unlink()


def _until_there(cluster: Cluster, name: str, path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        _refuse_ended(cluster, name, deadline)
        time.sleep(0.02)


def _until_ready(cluster: Cluster, connection: api.API) -> None:
    deadline = time.monotonic() + 60
    while not connection.is_ready():
        for name in ("etcd", "kube-apiserver"):
            _refuse_ended(cluster, name, deadline)
        time.sleep(0.05)


def _refuse_ended(cluster: Cluster, name: str, deadline: float) -> None:
    if cluster.processes[name].is_alive and time.monotonic() < deadline:
        return
    state = "does not answer" if cluster.processes[name].is_alive else "ended"
    tail = "\n".join(cluster.log(name).read_text(errors="replace").splitlines()[-15:])
    raise errors.Unavailable(f"{name} {state}:\n{tail}", reason="ComponentFailed", hint="its last lines stand above")


def _ready_node(items: list[api.Object]) -> bool | None:
    conditions = [item for node in items for item in node.get("status", {}).get("conditions", [])]
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    # the taint goes a moment after the condition comes, and pods wait for it
    return True if ready and not any(node["spec"].get("taints") for node in items) else None


def _any(items: list[api.Object]) -> bool | None:
    return True if items else None


# found again


def find(name: str, folder: Path = FOLDER) -> Cluster:
    """Return a cluster by name; raises NotFound."""
    path = folder / name / "cluster.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        hint = f"make it: python -m tools.cluster up --name {name}"
        raise errors.NotFound(f"there is no cluster {name!r} in {folder}", reason="NoCluster", hint=hint) from error
    one = content["host"]
    processes = {part: machine.Process(**process) for part, process in content["processes"].items()}
    return Cluster(
        name=name,
        version=content["version"],
        folder=folder / name,
        host=machine.Machine(
            folder=folder / name,
            number=one["number"],
            hostname=one["hostname"],
            init=machine.Process(**one["init"]),
            paths=tuple(one["paths"]),
        ),
        owner=machine.Process(**content["owner"]) if content["owner"] else None,
        processes=processes,
    )


def end(name: str, folder: Path = FOLDER) -> None:
    """End a cluster that runs, that failed half-way, or whose `up` was killed; raises NotFound."""
    home = folder / name
    if not home.is_dir():
        raise errors.NotFound(f"there is no cluster {name!r} in {folder}", reason="NoCluster")
    number = home / _NUMBER
    if number.exists():
        machine.shut_down(int(number.read_text()))
        machine.forget(home, int(number.read_text()))
        _drop_common(home)
    else:
        shutil.rmtree(home)  # it had no more than its name


def clusters(folder: Path = FOLDER) -> Iterator[Cluster]:
    """Yield every cluster, by name."""
    for path in sorted(folder.glob("*/cluster.json")):
        with contextlib.suppress(errors.NotFound):  # ended meanwhile
            yield find(path.parent.name, folder)


def sweep(folder: Path = FOLDER) -> list[str]:
    """End the clusters whose owner is gone, and return their names; one process at a time does so."""
    if not folder.is_dir():
        return []
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        orphans = [one for one in clusters(folder) if one.owner is not None and not one.owner.is_alive]
        for one in orphans:
            one.down()
        return [one.name for one in orphans]
    finally:
        os.close(handle)


def _drop_common(folder: Path) -> None:
    """Remove the folder that clusters share, after the last of them."""
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
