"""Tries a tenancy's network on a cluster with real packets: from inside pods, in both directions and both families.

One pod serves a secret word in the tenancy, in other tenancies and in none; then one pod in each place tries to reach
what it must and what it must not, and writes what it found as its output. They are made with the rights of the person
who asks, and are removed afterwards, also those that a killed trial left. In Fairlead's own image, which has Python and
no shell, they run `kernel.programs.tenancyprobe`; any other image needs a shell, and Python or busybox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel.programs import tenancyprobe
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline, matrix
from fairlead.plan.tenancy.matrix import Attempt, Matrix
from fairlead.store import subresource
from fairlead.store.port import Selector, Store
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.node.nodenetwork import NodeNetwork
from fairlead.wire.text.address import is_address

PROBE: Final = {"app.kubernetes.io/name": "fairlead-tenancy-test"}
"""Labels of the pods of trials; names below fairlead.dev/ are not a person's to set."""
PORT: Final = 8377
_OTHERS: Final = 3
_NODES: Final = 2
_START_S: Final = 60.0
_LIFE_S: Final = 180
_STEP_S: Final = 0.3
_OWN_PODS: Final = {"app.kubernetes.io/part-of": "fairlead"}
_PYTHON: Final = ("python3", "-I", "-S", "-c", Path(tenancyprobe.__file__).read_text())
_SERVER: Final = """
mkdir -p /tmp/fl && cd /tmp/fl && echo WORD > word
if command -v python3 >/dev/null; then
  python3 -m http.server PORT --bind ::
  exec python3 -m http.server PORT
fi
exec busybox httpd -f -p PORT -h /tmp/fl
"""
_CLIENT: Final = r"""
if command -v python3 >/dev/null; then
  get() { python3 -c 'import sys,socket
s=socket.create_connection((sys.argv[1],int(sys.argv[2])),2); s.sendall(b"GET /word HTTP/1.0\r\n\r\n")
sys.exit(sys.argv[3].encode() not in b"".join(iter(lambda: s.recv(4096),b"")))' "$@"; }
  tcp() { python3 -c 'import sys,socket; socket.create_connection((sys.argv[1],int(sys.argv[2])),2)' "$1" "$2"; }
  dns() { python3 -c 'import sys,socket; socket.getaddrinfo(sys.argv[1],443)' "$1"; }
else
  get() { printf 'GET /word HTTP/1.0\r\n\r\n' | busybox nc -w 2 "$1" "$2" | busybox grep -q "$3"; }
  tcp() { busybox nc -w 2 "$1" "$2" </dev/null; }
  dns() { busybox nslookup "$1"; }
fi
try() {
  number=$1; tries=$2; shift 2
  while [ "$tries" -gt 0 ]; do
    if "$@" >/dev/null 2>&1; then echo "fairlead $number reached"; return; fi
    tries=$((tries - 1)); [ "$tries" -gt 0 ] && sleep 1
  done
  echo "fairlead $number refused"
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """One connection that is to be tried."""

    source: str
    target: str
    family: int
    expected: bool
    words: tuple[str, ...]
    """The probe's function and its arguments: addresses, numbers and a fixed word, nothing that a tenant wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """An image, and how a pod of it serves and tries."""

    image: str
    is_own: bool
    """Whether it is Fairlead's, which has no shell."""

    def serving(self, word: str) -> tuple[str, ...]:
        if self.is_own:
            return (*_PYTHON, "serve", str(PORT), word)
        return ("sh", "-c", _SERVER.replace("WORD", word).replace("PORT", str(PORT)))

    def trying(self, tries: Sequence[_Try]) -> tuple[str, ...]:
        if self.is_own:
            return (*_PYTHON, "try", json.dumps([[_times(one), *one.words] for one in tries]))
        return ("sh", "-c", _script(tries))


class ClusterTrial:
    """`serve.backend.port.TenancyTrial` over an API server."""

    def __init__(self, store: Store, logs: subresource.Logs, *, outside: str = "default") -> None:
        """Take the store, where pods' output is read, and a namespace that is of no tenancy."""
        self._store, self._logs, self._outside = store, logs, outside

    def judge(self, item: Tenancy) -> None:
        """See `serve.backend.port.TenancyTrial.judge`; classes of isolation may be made after the tenancy."""

    async def test(self, item: Tenancy, every: Sequence[Tenancy], *, image: str = "") -> Matrix:
        """See `serve.backend.port.TenancyTrial.test`."""
        name = item.metadata.name
        if problem := baseline.not_ready(item):
            return matrix.judge(name, (), errors.sentence(problem))
        if item.spec.suspended:
            return matrix.judge(name, (), f'tenancy "{name}" is suspended, so no pod of it can send packets')
        others = [one for one in every if one.metadata.uid != item.metadata.uid and baseline.refusal(one) is None]
        places = [(one.metadata.name, baseline.namespace_name(one)) for one in others[:_OTHERS]]
        places.append(("(of no tenancy)", self._outside))
        spaces = [baseline.namespace_name(item), *(space for _, space in places)]
        try:
            await self._remove(spaces)
            probe = _Probe(image=image or await self._image(), is_own=not image)
            found, left_out = await self._tried(item, places, probe)
            return matrix.judge(name, found, left_out=left_out)
        except (errors.Unavailable, errors.Denied, errors.Conflict, errors.Invalid) as error:
            return matrix.judge(name, (), errors.sentence(error))
        finally:
            await self._remove(spaces)

    async def _tried(
        self, item: Tenancy, places: Sequence[tuple[str, str]], probe: _Probe
    ) -> tuple[tuple[Attempt, ...], tuple[str, ...]]:
        """Return what was tried, and what could not be: a place that takes no pod is left out by name."""
        name, space = item.metadata.name, baseline.namespace_name(item)
        word = secrets.token_hex(16)
        serving = probe.serving(word)
        left_out: list[str] = []
        mine = await self._create(space, serving, probe.image)
        made = []
        for title, where in places:
            try:
                made.append((title, where, await self._create(where, serving, probe.image)))
            except errors.Denied as error:
                left_out.append(f"{title}: {errors.sentence(error)}")
        mine = await self._until(mine, _runs)
        far = [(title, where, await self._until(pod, _runs)) for title, where, pod in made]

        near = "another container"
        wanted = _serving(name, near, mine, word, expected=True)
        # A refusal proves isolation only where the same probe can connect to something else.
        wanted += [_connecting(name, near, one.words[1], str(PORT), expected=True) for one in wanted]
        for title, _, server in far:
            wanted += _serving(name, title, server, word, expected=False)
        wanted += [*(await self._around(name)), _names(item)]
        trials = [(await self._create(space, probe.trying(wanted), probe.image), wanted)]
        for title, where, _ in far:
            back = _serving(title, name, mine, word, expected=False)
            try:
                trials.append((await self._create(where, probe.trying(back), probe.image), back))
            except errors.Denied as error:
                left_out.append(f"{title}, towards {name}: {errors.sentence(error)}")
        found = [one for pod, tries in trials for one in await self._found(pod, tries)]
        return tuple(found), tuple(left_out)

    async def _found(self, pod: core.Pod, tries: Sequence[_Try]) -> list[Attempt]:
        """Return what a pod wrote of its tries, once it has ended. Raises: Unavailable: it did not try everything."""
        ended = await self._until(pod, podstate.is_final)
        said = _said(b"".join([piece async for piece in self._logs.logs(ended, "main", subresource.LogOptions())]))
        if len(said) != len(tries):
            message = "a pod of the trial did not try everything that it was to try"
            hint = "has the image a shell, and Python or busybox?"
            raise errors.Unavailable(message, reason="ProbeFailed", hint=hint)
        return [
            Attempt(
                source=one.source,
                target=one.target,
                family=f"IPv{one.family}",
                expected=one.expected,
                reached=said[number],
            )
            for number, one in enumerate(tries)
        ]

    async def _around(self, source: str) -> list[_Try]:
        """Return what is tried of the cluster itself: its nodes, its API server, a cloud's metadata service."""
        found = []
        for node in (await self._store.list(NodeNetwork)).items[:_NODES]:
            inside = [one.address for one in node.status.addresses if is_address(one.address)]
            found += [_connecting(source, f"node {node.metadata.name}, kubelet", one, "10250") for one in inside]
        server = ("$KUBERNETES_SERVICE_HOST", "$KUBERNETES_SERVICE_PORT")
        found.append(_connecting(source, "the API server", *server))
        found.append(_connecting(source, "metadata service", "169.254.169.254", "80"))
        return found

    async def _image(self) -> str:
        """Return the image of Fairlead's own pods. Raises: Unavailable."""
        for pod in (await self._store.list(core.Pod, Selector(labels=_OWN_PODS))).items:
            if pod.spec.containers:
                return pod.spec.containers[0].image
        message = "no pod of Fairlead's runs in this cluster, whose image the trial could use"
        hint = "name one with a shell, and Python or busybox: `fairlead tenancy test NAME --image busybox`"
        raise errors.Unavailable(message, reason="ImageUnknown", hint=hint)

    # pods

    async def _create(self, space: str, argv: tuple[str, ...], image: str) -> core.Pod:
        small = core.ResourceRequirements(
            requests={"cpu": "10m", "memory": "32Mi"}, limits={"cpu": "500m", "memory": "128Mi"}
        )
        confined = core.SecurityContext(
            run_as_user=65534, run_as_non_root=True, allow_privilege_escalation=False,
            capabilities=core.Capabilities(drop=("ALL",)),
        )  # fmt: skip
        container = core.Container(
            name="main",
            image=image,
            command=argv,
            image_pull_policy="IfNotPresent",
            resources=small,
            security_context=confined,
            volume_mounts=(core.VolumeMount(name="tmp", mount_path="/tmp"),),  # noqa: S108 the pod's own
        )
        spec = core.PodSpec(
            containers=(container,),
            restart_policy="Never",
            termination_grace_period_seconds=0,
            active_deadline_seconds=_LIFE_S,
            volumes=(core.Volume(name="tmp", empty_dir=core.EmptyDirVolume()),),
        )
        about = meta.ObjectMeta(name=f"fl-probe-{secrets.token_hex(6)}", namespace=space, labels=PROBE)
        return await self._store.create(core.Pod(metadata=about, spec=spec))

    async def _until(self, pod: core.Pod, is_reached: Callable[[core.Pod], bool]) -> core.Pod:
        about = pod.metadata
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            found = await self._store.get(core.Pod, about.name, about.namespace)
            if is_reached(found):
                return found
            if podstate.is_final(found):
                break
            await asyncio.sleep(_STEP_S)
        message = f"pod {about.namespace}/{about.name} of the trial did not get there: {_why(found)}"
        hint = "`kubectl describe pod` says more; --image names another image"
        raise errors.Unavailable(message, reason="ProbeFailed", hint=hint)

    async def _remove(self, spaces: Iterable[str]) -> None:
        for space in spaces:
            for pod in (await self._store.list(core.Pod, Selector(namespace=space, labels=PROBE))).items:
                with contextlib.suppress(errors.NotFound):
                    await self._store.delete(core.Pod, pod.metadata.name, space, grace_s=0)


def _runs(pod: core.Pod) -> bool:
    return pod.status.phase == "Running"


def _why(pod: core.Pod) -> str:
    for one in pod.status.container_statuses:
        if one.state.waiting is not None and one.state.waiting.reason:
            return f"{one.state.waiting.reason} {one.state.waiting.message}".strip()
    return pod.status.message or next((one.message for one in pod.status.conditions if one.message), pod.status.phase)


def _family(where: str) -> int:
    return 6 if ":" in where else 4


def _serving(source: str, target: str, server: core.Pod, word: str, *, expected: bool) -> list[_Try]:
    found = []
    given = [one.ip for one in server.status.pod_ips or (core.PodIP(ip=server.status.pod_ip),)]
    for one in filter(is_address, given):
        family = _family(one)
        words = ("get", one, str(PORT), word)
        found.append(_Try(source=source, target=target, family=family, expected=expected, words=words))
    return found


def _connecting(source: str, target: str, address: str, port: str, *, expected: bool = False) -> _Try:
    words = ("tcp", address, port)
    return _Try(source=source, target=target, family=_family(address), expected=expected, words=words)


def _names(item: Tenancy) -> _Try:
    wanted = item.spec.network
    expected = wanted.dns and wanted.mode != kind.NONE
    words = ("dns", "kubernetes.default")
    return _Try(source=item.metadata.name, target="names (DNS)", family=4, expected=expected, words=words)


def _times(one: _Try) -> int:
    """Return how often something is tried: what should answer may be slow once."""
    return 4 if one.expected else 1


def _script(tries: Sequence[_Try]) -> str:
    """Return the client's script: every word of it is ours, an address of an object's status, or a variable."""
    lines = [
        " ".join(("try", str(number), str(_times(one)), *(f'"{word}"' for word in one.words)))
        for number, one in enumerate(tries)
    ]
    return "\n".join([_CLIENT, *lines, ""])


def _said(text: bytes) -> dict[int, bool]:
    """Return what was reached, by number."""
    found: dict[int, bool] = {}
    for line in text.decode(errors="replace").splitlines():
        match line.split():
            case ["fairlead", number, ("reached" | "refused") as how] if number.isdecimal() and len(number) < 9:
                found[int(number)] = how == "reached"
    return found
