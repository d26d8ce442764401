"""The HTTP API, called in this loop over a small machine: bodies, names in paths and queries of every route."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib import parse

import httpx
import msgspec

from fairlead import errors
from fairlead.serve.api import app as base
from fairlead.serve.api import stream
from fairlead.serve.v1 import app
from fairlead.store.port import ChangeKind
from fairlead.wire.kubernetes import core, devicechange
from fairlead.wire.kubernetes.devicechange import DeviceChange, DeviceChangeStatus
from tests.fuzz import hostile
from tests.fuzz.doors.text import POD, QUOTA
from tests.fuzz.harness import Door, Feed
from tests.unit.serve.world import World, application, in_process

_BUG: Final = 500
_REFUSED: Final = 400
_PARTS: Final = 3
_LONGEST: Final = 1 << 14
_JSON: Final = {"Content-Type": "application/json"}

CONTAINER: Final = {
    "image": "demo",
    "namespace": "default",
    "name": "box",
    "gpus": 1,
    "resources": {"nvidia.com/gpu": "1"},
    "command": ["echo"],
    "args": ["x"],
    "env": {"A": "b"},
    "cpu": "1",
    "memory": "1Gi",
    "restart": "Never",
    "labels": {"app": "x"},
    "tty": False,
    "stdin": False,
    "user": "1:1",
    "workdir": "/srv",
    "binds": [{"host_path": "/srv", "container_path": "/v", "read_only": True}],
}
_OPTIONS: Final = {
    "image": "demo",
    "read_only": True,
    "cap_drop": ["NET_RAW"],
    "devices": [],
    "init": True,
    "ipc": "",
    "isolation": "",
    "groups": ["44"],
    "hostname": "a",
    "hosts": [{"name": "db", "address": "10.0.0.1"}],
    "dns": ["10.0.0.1"],
    "dns_searches": ["lab"],
    "dns_options": ["ndots:1"],
    "network": "",
    "ports": [{"container_port": 80, "host_port": 0, "host_ip": "127.0.0.1", "protocol": "TCP"}],
    "ulimits": [{"name": "core", "soft": 0, "hard": 0}],
    "memory_mounts": [{"container_path": "/scratch", "size": "8Mi"}],
    "volumes": [{"name": "cache", "container_path": "/cache", "read_only": True}],
    "health": {"command": ["true"], "interval_s": 1, "timeout_s": 1, "retries": 3, "start_period_s": 0},
    "grace_s": 1,
    "stop_signal": "SIGINT",
    "pull": "Never",
    "preempt": False,
    "priority": 10,
    "time_limit_s": 60,
    "remove_after_s": 60,
}
_GANG: Final = {"image": "demo", "gang": "train", "gang_minimum": 2, "claims": [{"name": "mine", "template": "t"}]}
_RESERVED: Final = {
    "image": "demo",
    "reservation": "night",
    "queue": "team",
    "devices": ["vendor.com/class=name"],
    "gpus": 1,
    "secrets": [{"name": "db", "key": "a", "env": "A", "path": ""}],
}
OLD_NAMES: Final = {"container-url": "demo", "tenancy": "team"}
_CLAIMING: Final = {
    "image": "demo",
    "gpus": 2,
    "device_class": "gpu.nvidia.com",
    "where": "model=H100,memory>=40Gi,compute>=9.0,numa=same",
}
_CLAIM: Final = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "mine", "labels": {"a": "b"}},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpus",
                    "exactly": {
                        "deviceClassName": "gpu.nvidia.com",
                        "count": 1,
                        "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}],
                    },
                }
            ],
            "constraints": [{"requests": ["gpus"], "matchAttribute": "resource.kubernetes.io/numaNode"}],
        }
    },
}
_PROBE: Final = {
    "httpGet": {"path": "/ready", "port": "web", "scheme": "HTTP", "httpHeaders": [{"name": "A", "value": "b"}]},
    "initialDelaySeconds": 1,
    "timeoutSeconds": 1,
    "periodSeconds": 1,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_WHOLE: Final = {
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db.local"]}],
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["lab"], "options": [{"name": "ndots", "value": "1"}]},
    "hostnameOverride": "a.lab",
    "shareProcessNamespace": True,
    "initContainers": [
        {
            "name": "side",
            "image": "demo",
            "restartPolicy": "Always",
            "startupProbe": {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 3},
        }
    ],
    "containers": [
        {
            "name": "main",
            "image": "demo",
            "ports": [{"name": "web", "containerPort": 80}],
            "readinessProbe": _PROBE,
            "livenessProbe": {"grpc": {"port": 50051, "service": "x"}},
            "startupProbe": {"tcpSocket": {"port": 80, "host": "localhost"}},
            "lifecycle": {"postStart": {"sleep": {"seconds": 1}}, "preStop": {"exec": {"command": ["true"]}}},
            "restartPolicy": "Never",
            "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "envFrom": [{"prefix": "A_", "configMapRef": {"name": "m", "optional": True}}],
            "env": [
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": True}}},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            ],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a/b"}],
        }
    ],
    "volumes": [
        {
            "name": "v",
            "projected": {
                "defaultMode": 420,
                "sources": [
                    {"configMap": {"name": "m", "items": [{"key": "k", "path": "a/b", "mode": 292}]}},
                    {"secret": {"name": "s", "optional": True}},
                    {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                ],
            },
        },
        {"name": "w", "configMap": {"name": "m", "defaultMode": 292}},
    ],
}
_GATED: Final = {**_WHOLE, "readinessGates": [{"conditionType": "example.com/open"}]}
_WHOLE_POD: Final = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "whole"}, "spec": _GATED}
_TEMPLATE: Final = {"metadata": {"labels": {"app": "x"}}, "spec": _WHOLE}
_DEPLOYMENT: Final = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "x"}},
        "template": _TEMPLATE,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
        "minReadySeconds": 1,
        "progressDeadlineSeconds": 600,
    },
}
_JOB_SPEC: Final = {
    "parallelism": 1,
    "completions": 2,
    "completionMode": "Indexed",
    "backoffLimit": 1,
    "activeDeadlineSeconds": 60,
    "ttlSecondsAfterFinished": 60,
    "suspend": False,
    "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "demo"}]}},
}
_JOB: Final = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": _JOB_SPEC}
_CRON_JOB: Final = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "nightly"},
    "spec": {
        "schedule": "0 3 * * *",
        "timeZone": "Europe/Berlin",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 60,
        "jobTemplate": {"spec": _JOB_SPEC},
    },
}
_SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {
        "type": "NodePort",
        "selector": {"app": "x"},
        "ports": [{"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080, "protocol": "TCP"}],
    },
}
_CONFIG_MAP: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "m"},
    "data": {"k": "v"},
    "binaryData": {"b": "AAE="},
}
_WEBHOOK: Final = {
    "url": "https://hooks.example/x",
    "events": ["container.*"],
    "format": "fairlead",
    "tenancy": "red",
    "token": "",
}
_NOTICE: Final = {"url": "mailto:ann@example.com", "format": "email", "tenancy": "red", "events": ["container.failed"]}
BODIES: Final = (
    (
        "POST",
        "/v1/containers",
        (("container", CONTAINER), ("old names", OLD_NAMES), ("claiming", _CLAIMING), ("options", _OPTIONS)),
    ),
    ("POST", "/v1/pods", (("pod", POD), ("claim", _CLAIM))),
    (
        "POST",
        "/v1/apply",
        (
            ("deployment", _DEPLOYMENT),
            ("job", _JOB),
            ("cron job", _CRON_JOB),
            ("service", _SERVICE),
            ("config map", _CONFIG_MAP),
            ("whole pod", _WHOLE_POD),
        ),
    ),
    ("POST", "/v1/delete", (("deployment", _DEPLOYMENT), ("config map", _CONFIG_MAP))),
    ("PUT", "/v1/quotas", (("quota", QUOTA),)),
    ("POST", "/v1/faults", (("fault", {"fault": "xid", "gpu": 0, "value": "79", "node": ""}),)),
    (
        "PATCH",
        "/v1/containers/held/resize",
        (("resize", {"container": "demo", "cpu": "1500m", "memory": "1Gi"}),),
    ),
    ("POST", "/v1/containers/held:rename", (("rename", {"name": "held-2"}),)),
    (
        "POST",
        "/v1/containers/held/ephemeralcontainers",
        (
            (
                "debug",
                {
                    "image": "demo",
                    "name": "look",
                    "target": "demo",
                    "command": ["ps"],
                    "args": ["-e"],
                    "env": {"A": "b"},
                    "workdir": "/",
                    "pull": "Never",
                    "stdin": True,
                    "tty": False,
                },
            ),
        ),
    ),
    (
        "PATCH",
        "/v1/containers/held/status",
        (
            (
                "status",
                {"conditions": [{"type": "example.com/open", "status": "True", "reason": "Open", "message": "it is"}]},
            ),
        ),
    ),
    (
        "POST",
        "/v1/containers/held:attach",
        (("attach", {"gpu": "1", "resource": "nvidia.com/gpu", "container": "demo", "force": False}),),
    ),
    (
        "POST",
        "/v1/containers/held:detach",
        (("detach", {"gpu": "1", "resource": "nvidia.com/gpu", "container": "demo", "force": True}),),
    ),
    (
        "POST",
        "/v1/secrets",
        (("secret", {"name": "db", "namespace": "default", "values": {"a": "b"}, "values_base64": {"c": "ZA=="}}),),
    ),
    ("PUT", "/v1/secrets/held", (("values", {"values": {"a": "b"}, "values_base64": {"c": "ZA=="}}),)),
    (
        "POST",
        "/v1/reservations",
        (
            (
                "reservation",
                {
                    "gpus": 4,
                    "from": "tomorrow 9:00",
                    "duration_seconds": 10800,
                    "name": "night",
                    "namespace": "default",
                    "zone": "Europe/Berlin",
                    "repeat": "weekdays",
                    "until": "2026-12-31",
                },
            ),
        ),
    ),
    ("POST", "/v1/volumes", (("volume", {"name": "cache", "namespace": "default", "labels": {"a": "b"}, "size": ""}),)),
    (
        "PUT",
        "/v1/queues/team",
        (
            (
                "queue",
                {
                    "parent": "all",
                    "guarantee": {"nvidia.com/gpu": "1"},
                    "deserved": {"nvidia.com/gpu": "1"},
                    "limit": {"nvidia.com/gpu": "2"},
                    "weight": 1,
                    "namespaces": ["default"],
                    "min_runtime_seconds": 1,
                    "policy": "binpack",
                    "idle": {
                        "below_percent": 5,
                        "after_seconds": 600,
                        "warn_seconds": 60,
                        "action": "stop",
                        "cpu_percent": 50,
                        "io_bytes": 1000,
                        "exempt": ["app=x"],
                    },
                },
            ),
        ),
    ),
    (
        "POST",
        "/v1/tenancies",
        (
            (
                "tenancy",
                {
                    "name": "red",
                    "display_name": "Red",
                    "quota": {"pods": "8"},
                    "mode": "bridge",
                    "internet": "deny",
                    "dns": False,
                    "publish": False,
                    "egress": ["192.168.7.0/24"],
                    "images": ["registry/team/"],
                    "nfs": "nas.example:/exports/red",
                    "nfs_options": ["vers=4.2"],
                    "isolation": "gvisor",
                    "host_users": False,
                },
            ),
        ),
    ),
    (
        "PATCH",
        "/v1/tenancies/held",
        (("limits", {"display_name": "Red", "quota": {"pods": "8", "requests.nvidia.com/gpu": "4"}}),),
    ),
    (
        "PUT",
        "/v1/tenancies/held/registry",
        (("login", {"registry": "registry.example:5000/team", "username": "red", "password": "rosebud"}),),
    ),
    ("POST", "/v1/users", (("user", {"name": "ann", "kind": "person", "is_administrator": False}),)),
    ("POST", "/v1/session", (("session", {"key": f"flk_{'a' * 12}_{'b' * 64}"}),)),
    (
        "PUT",
        "/v1/tenancies/held/budget",
        (("budget", {"amount": "5", "action": "stop", "notify_percent": [50], "grace_s": 60}),),
    ),
    ("POST", "/v1/webhooks", (("webhook", _WEBHOOK),)),
    (
        "POST",
        "/v1/notices",
        (("notice", {**_NOTICE, "machine": False}), ("room", {**_NOTICE, "format": "matrix", "token": "t"})),
    ),
    ("POST", "/v1/notices/held:confirm", (("confirm", {"code": "01234567"}),)),
    ("POST", "/v1/oidc/device:finish", (("login", {"handle": "gAAAA"}),)),
    ("POST", "/v1/keys", (("key", {"account": "ann", "scopes": ["read"], "lifetime_s": 60.0, "note": "x"}),)),
    (
        "POST",
        "/v1/sshkeys",
        (("key", {"account": "ann", "public_key": "ssh-ed25519 AAAA", "lifetime_s": 60.0, "note": "x"}),),
    ),
    ("POST", "/v1/containers/held/ports/8888/door", (("door", {"path": "/lab?token=x"}),)),
    ("POST", "/v1/keys/held:rotate", (("rotate", {"overlap_s": 60.0}),)),
    ("PUT", "/v1/tenancies/held/members/{account}", (("role", {"role": "viewer"}),)),
    ("POST", "/v1/baselines:approve", (("approve", {"board": "233010de-16c110de-900"}),)),
    ("POST", "/v1/leases:quarantine", (("quarantine", {"gpu": "GPU-a", "why": "row remap failed"}),)),
    ("POST", "/v1/gpus:end-neighbours", (("end", {"gpus": ["0", "GPU-a"], "ids": ["4242-1000"]}),)),
    ("POST", "/v1/leases:release", (("release", {"gpu": "GPU-a", "why": "replaced"}),)),
    ("POST", "/v1/baselines:forget", (("forget", {"board": "NVIDIA H100 80GB HBM3"}),)),
    ("POST", "/v1/images:pull", (("pull", {"name": "demo"}),)),
    ("POST", "/v1/images:tag", (("tag", {"name": "demo", "new": "demo:2"}),)),
    ("POST", "/v1/images:import", (("import", {"path": "/nonexistent", "name": "loot:1", "command": ["sh"]}),)),
    (
        "POST",
        "/v1/images:build",
        (
            (
                "build",
                {
                    "context": "/nonexistent",
                    "name": "made:1",
                    "containerfile": "/nonexistent/Containerfile",
                    "args": {"A": "b"},
                    "target": "base",
                },
            ),
        ),
    ),
)
UNMET: Final = (("POST", "/v1/containers", (("gang", _GANG), ("reserved", _RESERVED))),)
"""Bodies of the same routes that name what is not there: these may be refused."""
_ENDLESS: Final = frozenset({"follow", "once"})
"""Parameters with which a route does not answer before its container ends."""


@functools.cache
def document() -> Any:
    """Return the description of every route, as clients read it."""
    return base.describe(app.create_app(World(Path("/nonexistent")).services))


def _routes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def _quick(path: str) -> dict[str, str]:
    """Return what keeps a route from waiting."""
    return {"timeout": "0.01"} if path.endswith("/wait") else {}


def _requests() -> tuple[tuple[str, Any], ...]:
    """Return a request for each name and each parameter of every route: none can be left out."""
    found: list[tuple[str, Any]] = [("GET /v1/{}", ["GET", "/v1/{}", {"path": "none"}])]
    for method, path, operation in _routes():
        if "{name}" in path:
            named = path.replace("{name}", "{}")
            query = parse.urlencode(_quick(path))
            found.append((f"{method} {named}", [method, f"{named}?{query}", {"path": "none"}]))
        there = path.replace("{name}", "held" if method == "GET" else "none")
        for one in operation.get("parameters", ()):
            if one["in"] == "query" and one["name"] not in _ENDLESS:
                value = _VALID.get(one["name"], "x")
                found.append((f"{method} {there}?{one['name']}", [method, there, {**_quick(path), one["name"]: value}]))
    return tuple(found)


_VALID: Final = {
    "tail": "1",
    "all": "true",
    "timestamps": "true",
    "previous": "false",
    "grace": "0",
    "limit": "1",
    "timeout": "0.01",
    "state": "started",
    "signal": "0",
    "split": "true",
    "create": "true",
}


class Refused(Exception):
    """A status from 400 on, with a problem document."""


class _Service:
    """The application, and a container that runs."""

    def __init__(self, world: World, client: httpx.AsyncClient) -> None:
        self.world = world
        self.client = client

    async def send(self, method: str, target: str, data: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        """Call a route, and tidy up what it made. Raises: Refused; AssertionError: an answer that none should be."""
        try:
            answer = await self.client.request(method, target, content=data, headers=headers)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise Refused("no client can send it") from error
        if answer.status_code == _BUG:
            raise AssertionError(answer.text[:200])
        if len(answer.content) > _LONGEST and answer.status_code >= _REFUSED:
            raise AssertionError(f"a refusal of {len(answer.content)} bytes")
        if answer.status_code >= _REFUSED:
            kind = answer.headers.get("content-type", "")
            if not kind.startswith("application/problem+json"):
                raise AssertionError(f"{answer.status_code} {kind}: {answer.text[:200]}")
            raise Refused(answer.text)
        if answer.headers.get("content-type", "").startswith(stream.LINES):
            return _ending(answer.content)
        return answer.json() if answer.headers.get("content-type") == "application/json" else None

    async def refuse_changes(self) -> None:
        """Answer requests for devices as a node does that has none to give."""
        store = self.world.store
        async for change in store.watch(DeviceChange):
            if change.kind is ChangeKind.ADDED:
                problem = devicechange.problem_of(errors.Conflict("no", reason="NothingToAttach"))
                status = DeviceChangeStatus(phase="Refused", problem=problem)
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await store.update_status(msgspec.structs.replace(change.object, status=status))

    async def tidy(self) -> None:
        """Remove pods and quotas that a case has made."""
        store = self.world.store
        for pod in (await store.list(core.Pod)).items:
            if pod.metadata.name != "held":
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await store.delete(core.Pod, pod.metadata.name, pod.metadata.namespace, grace_s=0)
        for quota in (await store.list(core.ResourceQuota)).items:
            with contextlib.suppress(errors.NotFound):
                await store.delete(core.ResourceQuota, quota.metadata.name, quota.metadata.namespace)


def _ending(lines: bytes) -> Any:
    """Return the last line of a stream. Raises: Refused: it is a problem; AssertionError: a bug cut the stream off."""
    last = json.loads(lines.splitlines()[-1]) if lines.endswith(b"\n") else {}
    if "problem" in last:
        raise Refused(str(last))
    if set(last) == {"output"} or not last:
        raise AssertionError(f"a stream was cut off: {lines[-200:]!r}")
    return last


@contextlib.asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[_Service]:
    world = World(folder)
    async with world.running():
        transport = in_process(application(world.services), raises=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            made = _Service(world, client)
            body = {"image": "demo", "name": "held", "command": ["sleep"], "args": ["1000"], "gpus": 1}
            await made.send("POST", "/v1/containers", json.dumps(body).encode(), _JSON)
            async with asyncio.timeout(20):
                async for change in world.store.watch(core.Pod):
                    if change.object.status.phase == "Running":
                        break
            async with asyncio.TaskGroup() as group:
                node = group.create_task(made.refuse_changes())
                yield made
                node.cancel()


@contextlib.asynccontextmanager
async def _body(folder: Path, method: str, target: str) -> AsyncIterator[Feed]:
    async with _service(folder) as service:

        async def feed(data: bytes) -> None:
            try:
                said = await service.send(method, target, data, _JSON)
                with contextlib.suppress(ValueError):  # YAML is taken as well
                    _assert_faithful(json.loads(data), said)
            finally:
                await service.tidy()

        yield feed


def _assert_faithful(asked: Any, said: Any) -> None:
    """What was taken is shown as it was sent; a volume has labels of our own on top."""
    if isinstance(said, dict) and isinstance(asked, dict):
        for key in ("name", "image"):
            if isinstance(asked.get(key), str) and asked[key] and key in said and said[key] != asked[key]:
                raise AssertionError(f"{key} was changed: {said[key]!r:.200}")
        labels = asked.get("labels")
        if "image" in asked and isinstance(labels, dict) and said.get("labels", labels) != labels:
            raise AssertionError(f"labels were changed: {said['labels']!r:.200}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


@contextlib.asynccontextmanager
async def _words(folder: Path) -> AsyncIterator[Feed]:
    async with _service(folder) as service:

        async def feed(data: bytes) -> None:
            try:
                found = json.loads(data)
                if len(found) != _PARTS or not isinstance(found[2], dict) or not all(map(_is_text, found[2].values())):
                    raise Refused("not a request")
                method, path, names = found
                quoted = {key: parse.quote(value, safe="", errors="surrogatepass") for key, value in names.items()}
                if "path" in quoted:
                    await service.send(method, path.replace("{}", quoted["path"]))
                else:
                    query = "&".join(f"{key}={value}" for key, value in quoted.items())
                    await service.send(method, f"{path}?{query}")
            finally:
                await service.tidy()

        yield feed


def _door(method: str, target: str, specimens: tuple[tuple[str, Any], ...], *, unmet: str = "") -> Door:
    return Door(
        name=f"API, {method} {target}{unmet}",
        opened=lambda folder: _body(folder, method, target),
        specimens=specimens,
        refusals=(Refused,),
        refuses_specimens=bool(unmet) or target not in _TAKEN,
        every=3 if target == "/v1/pods" else 1,
        sample=120 if target in {"/v1/containers", "/v1/pods"} else 40,
    )


_TAKEN: Final = {
    "/v1/containers",
    "/v1/pods",
    "/v1/quotas",
    "/v1/faults",
    "/v1/volumes",
    "/v1/secrets",
    "/v1/images:tag",
}
"""Whose specimens have to pass."""


DOORS: Final = (
    *(_door(method, target, specimens) for method, target, specimens in BODIES),
    *(_door(*row, unmet=" for what is not there") for row in UNMET),
    Door(
        name="API, names and queries",
        opened=_words,
        specimens=_requests(),
        values=tuple(one for one in hostile.TEXTS),
        documents=False,
        refusals=(Refused,),
        refuses_specimens=True,
        sample=120,
    ),
)
