"""What schedulers and a node's operator hand in: an extender's calls, groups, queues, volumes, configuration files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead import settings
from fairlead.control.scheduler import snapshot
from fairlead.control.scheduler.extender import Extender
from fairlead.plan.gpu import nodeconfig
from fairlead.plan.pod import volume
from fairlead.plan.schedule.rankings import PlainRankings
from fairlead.plan.schedule.workloads import Workloads
from fairlead.serve.v1.queues import view
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.kubernetes import store
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup, queue
from fairlead.wire.nvidia import migparted, pluginreader
from tests.fuzz import hostile
from tests.fuzz.doors.answers import _api, _list
from tests.fuzz.doors.text import OURS, plain
from tests.fuzz.harness import Door, Feed

# calls of kube-scheduler ----------------------------------------------------------------------------------------------

_POD: Final[dict[str, Any]] = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"app": "x"}},
    "spec": {
        "containers": [{"name": "main", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "2"}}}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "red", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
_VICTIMS: Final = {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
CALLS: Final[dict[str, Any]] = {
    "/filter": {"Pod": _POD, "Nodes": None, "NodeNames": ["a", "b"]},
    "/prioritize": {"Pod": _POD, "NodeNames": ["a", "b"]},
    "/bind": {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a"},
    "/preempt": {"Pod": _POD, "NodeNameToMetaVictims": _VICTIMS},
}


def _node() -> core.Node:
    status = core.NodeStatus(
        allocatable={"nvidia.com/gpu": "8", "pods": "110"}, conditions=(meta.Condition(type="Ready", status="True"),)
    )
    return core.Node(metadata=meta.ObjectMeta(name="a", uid="a", labels={"zone": "a"}), status=status)


def _extender(path: str) -> Callable[[Path], contextlib.AbstractAsyncContextManager[Feed]]:
    @contextlib.asynccontextmanager
    async def opened(_: Path) -> AsyncIterator[Feed]:
        made = Extender(EmbeddedPlacement(MemoryStore()), PlainRankings("packed"))
        watch = next(one for one in made.watches() if one.kind is core.Node)
        tuple(watch.keys(Change(kind=ChangeKind.ADDED, object=_node())))

        async def feed(data: bytes) -> None:
            msgspec.json.decode(await made.calls[path](data))

        yield feed

    return opened


# objects of an API server ---------------------------------------------------------------------------------------------

_ABOUT: Final = {"name": "team", "namespace": "default", "uid": "u", "labels": {"app": "x"}}
_GROUP: Final = {"metadata": _ABOUT, "spec": {"minMember": 2, "schedulingPolicy": {"gang": {"minCount": 2}}}}
_QUEUE: Final = {
    "metadata": {"name": "team", "uid": "u"},
    "spec": {
        "parent": "all",
        "guarantee": {"nvidia.com/gpu": "2"},
        "deserved": {"nvidia.com/gpu": "4"},
        "limit": {"nvidia.com/gpu": "8"},
        "weight": 1,
        "namespaces": ["default"],
    },
    "status": {"conditions": [{"type": "Valid", "status": "True", "reason": "", "message": ""}]},
}
_CLAIM: Final = {
    "metadata": _ABOUT,
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}, "volumeName": "v"},
    "status": {"phase": "Bound"},
}


async def _groups(objects: store.KubernetesStore) -> None:
    known = Workloads()
    for one in (await objects.list(podgroup.PodGroup)).items:
        known.note_group(one)


async def _queues(objects: store.KubernetesStore) -> None:
    known = Workloads()
    for one in (await objects.list(queue.Queue)).items:
        known.note_queue(one)
        msgspec.json.encode(view.view(one))


async def _claims(objects: store.KubernetesStore) -> None:
    for one in (await objects.list(core.PersistentVolumeClaim)).items:
        volume.users([]).get(one.metadata.name, ())
        msgspec.json.encode(one)


# files of an operator -------------------------------------------------------------------------------------------------

_PLUGIN: Final = {
    "version": "v1",
    "flags": {"migStrategy": "none", "plugin": {"passDeviceSpecs": False, "deviceListStrategy": ["envvar"]}},
    "resources": {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]},
    "sharing": {
        "timeSlicing": {
            "renameByDefault": False,
            "failRequestsGreaterThanOne": True,
            "resources": [{"name": "nvidia.com/gpu", "rename": "shared", "devices": ["0"], "replicas": 2}],
        }
    },
}
_MPS: Final = {
    "version": "v1",
    "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "devices": "all", "replicas": 2}]}},
}
_MIG: Final = {
    "version": "v1",
    "mig-configs": {
        "custom": [
            {
                "device-filter": ["0x233010DE"],
                "devices": [0, 2],
                "mig-enabled": True,
                "mig-devices": {"1g.10gb": 2},
            }
        ]
    },
}


def _plugin(data: bytes, _: Path) -> None:
    nodeconfig.plan_config(settings.Settings(), pluginreader.parse(data, source="config"), name="config")


def _mig(data: bytes, _: Path) -> None:
    migparted.emit_config(migparted.parse_config(data, source="config"))


_SNAPSHOT: Final = {
    "apiVersion": snapshot.API_VERSION,
    "kind": snapshot.KIND,
    "policy": "packed",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "a", "uid": "a", "labels": {"zone": "a"}},
            "spec": {"taints": [{"key": "red", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
        },
        {"apiVersion": "v1", "kind": "Pod", **_POD, "spec": {**_POD["spec"], "schedulerName": "fairlead"}},
    ],
}


@contextlib.asynccontextmanager
async def _snapshot(_: Path) -> AsyncIterator[Feed]:
    async def feed(data: bytes) -> None:
        await snapshot.replay(snapshot.parse(data), settings.ControlSettings())

    yield feed


DOORS: Final = (
    Door(name="scheduler's snapshot", opened=_snapshot, specimens=(("file", _SNAPSHOT),), refusals=OURS),
    *(
        Door(name=f"extender, {path}", opened=_extender(path), specimens=(("call", body),), refusals=OURS)
        for path, body in CALLS.items()
    ),
    Door(name="API server: groups", opened=_api(_groups), specimens=(("list", _list(_GROUP)),), refusals=OURS),
    Door(name="API server: queues", opened=_api(_queues), specimens=(("list", _list(_QUEUE)),), refusals=OURS),
    Door(name="API server: claims", opened=_api(_claims), specimens=(("list", _list(_CLAIM)),), refusals=OURS),
    Door(
        name="agent's configuration",
        opened=plain(_plugin),
        specimens=(("file", _PLUGIN), ("MPS", _MPS)),
        values=hostile.YAML_VALUES,
        refusals=OURS,
    ),
    Door(
        name="MIG layouts",
        opened=plain(_mig),
        specimens=(("file", _MIG),),
        values=hostile.YAML_VALUES,
        refusals=OURS,
    ),
)
