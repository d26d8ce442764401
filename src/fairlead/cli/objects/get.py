"""`fairlead get`: lists objects in kubectl's columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.v1.objects.view import ObjectList
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.workloads import kinds

Document = Mapping[str, Any]
_NONE: Final = "<none>"


def _about(item: Document) -> Document:
    return dict(item.get("metadata", {}))


def _at(item: Document, *path: str, default: Any = 0) -> Any:
    found: Any = item
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return default if found is None else found


def _age(item: Document) -> str:
    return output.age(_about(item).get("creationTimestamp"))


def _pod_ready(item: Document) -> str:
    sidecars = {one["name"] for one in _at(item, "spec", "initContainers", default=()) if one.get("restartPolicy")}
    statuses = list(_at(item, "status", "containerStatuses", default=()))
    statuses += [one for one in _at(item, "status", "initContainerStatuses", default=()) if one["name"] in sidecars]
    total = len(_at(item, "spec", "containers", default=())) + len(sidecars)
    return f"{sum(bool(one.get('ready')) for one in statuses)}/{total}"


def _pod_status(item: Document) -> str:
    """Return kubectl's one word for a pod."""
    if _about(item).get("deletionTimestamp"):
        return "Terminating"
    phase, reason = _at(item, "status", "phase", default="Pending"), _at(item, "status", "reason", default="")
    inits = _at(item, "status", "initContainerStatuses", default=())
    sidecars = {one["name"] for one in _at(item, "spec", "initContainers", default=()) if one.get("restartPolicy")}
    for number, one in enumerate(inits):
        state = one.get("state", {})
        is_done = "terminated" in state and not _at(state, "terminated", "exitCode")
        if one["name"] not in sidecars and not is_done:
            ended = _at(state, "terminated", "reason", default="Error") if "terminated" in state else ""
            waits = _at(state, "waiting", "reason", default="")
            why = ended or ("" if waits in {"PodInitializing", "ContainerCreating"} else waits)
            return f"Init:{why or f'{number}/{len(inits)}'}"
    for one in _at(item, "status", "containerStatuses", default=()):
        state = one.get("state", {})
        if waits := _at(state, "waiting", "reason", default=""):
            return str(waits)
        if "terminated" in state and (ended := _at(state, "terminated", "reason", default="")):
            return str(ended)
    return str(reason or ("Completed" if phase == "Succeeded" else phase))


def _restarts(item: Document) -> str:
    every = (
        *_at(item, "status", "containerStatuses", default=()),
        *_at(item, "status", "initContainerStatuses", default=()),
    )
    return str(sum(int(one.get("restartCount", 0)) for one in every))


def _replicas(item: Document) -> int:
    return int(_at(item, "spec", "replicas", default=1))


def _job_status(item: Document) -> str:
    for one in _at(item, "status", "conditions", default=()):
        if one.get("type") in {"Complete", "Failed", "Suspended"} and one.get("status") == "True":
            return str(one["type"])
    return "Terminating" if _about(item).get("deletionTimestamp") else "Running"


def _job_done(item: Document) -> str:
    wanted = _at(item, "spec", "completions", default=None)
    done = _at(item, "status", "succeeded")
    if wanted is not None:
        return f"{done}/{wanted}"
    many = _at(item, "spec", "parallelism", default=1)
    return f"{done}/1 of {many}" if many > 1 else f"{done}/1"


def _job_duration(item: Document) -> str:
    begin, end = (meta.timestamp(_at(item, "status", key, default=None)) for key in ("startTime", "completionTime"))
    if begin is None:
        return ""
    return output.span(max(0.0, (end or dt.datetime.now(dt.UTC).timestamp()) - begin))


def _ports(item: Document) -> str:
    found = []
    for one in _at(item, "spec", "ports", default=()):
        node = f":{one['nodePort']}" if one.get("nodePort") else ""
        found.append(f"{one['port']}{node}/{one.get('protocol', 'TCP')}")
    return ",".join(found) or _NONE


_Texts = Mapping[str, Callable[[Document], str]]
_NODE: Final = "NODE"
_COLUMNS: Final[Mapping[str, _Texts]] = {
    "Pod": {
        "READY": _pod_ready,
        "STATUS": _pod_status,
        "RESTARTS": _restarts,
        "AGE": _age,
        "IP": lambda item: str(_at(item, "status", "podIP", default="") or _NONE),
        _NODE: lambda item: str(_at(item, "spec", "nodeName", default="") or _NONE),
    },
    "Deployment": {
        "READY": lambda item: f"{_at(item, 'status', 'readyReplicas')}/{_replicas(item)}",
        "UP-TO-DATE": lambda item: str(_at(item, "status", "updatedReplicas")),
        "AVAILABLE": lambda item: str(_at(item, "status", "availableReplicas")),
        "AGE": _age,
    },
    "ReplicaSet": {
        "DESIRED": lambda item: str(_replicas(item)),
        "CURRENT": lambda item: str(_at(item, "status", "replicas")),
        "READY": lambda item: str(_at(item, "status", "readyReplicas")),
        "AGE": _age,
    },
    "StatefulSet": {
        "READY": lambda item: f"{_at(item, 'status', 'readyReplicas')}/{_replicas(item)}",
        "AGE": _age,
    },
    "Job": {"STATUS": _job_status, "COMPLETIONS": _job_done, "DURATION": _job_duration, "AGE": _age},
    "CronJob": {
        "SCHEDULE": lambda item: str(_at(item, "spec", "schedule", default="")),
        "TIMEZONE": lambda item: str(_at(item, "spec", "timeZone", default=_NONE)),
        "SUSPEND": lambda item: str(bool(_at(item, "spec", "suspend", default=False))),
        "ACTIVE": lambda item: str(len(_at(item, "status", "active", default=()))),
        "LAST SCHEDULE": lambda item: output.age(_at(item, "status", "lastScheduleTime", default=None)) or _NONE,
        "AGE": _age,
    },
    "Service": {
        "TYPE": lambda item: str(_at(item, "spec", "type", default="ClusterIP") or "ClusterIP"),
        "ENDPOINTS": lambda item: ",".join(_at(item, "status", "endpoints", default=())) or _NONE,
        "PORT(S)": _ports,
        "AGE": _age,
    },
    "PodDisruptionBudget": {
        "MIN AVAILABLE": lambda item: str(_at(item, "spec", "minAvailable", default="N/A")),
        "MAX UNAVAILABLE": lambda item: str(_at(item, "spec", "maxUnavailable", default="N/A")),
        "ALLOWED DISRUPTIONS": lambda item: str(_at(item, "status", "disruptionsAllowed")),
        "AGE": _age,
    },
    "ConfigMap": {
        "DATA": lambda item: str(len(_at(item, "data", default=())) + len(_at(item, "binaryData", default=()))),
        "AGE": _age,
    },
    "Secret": {
        "TYPE": lambda item: str(_at(item, "type", default="Opaque")),
        "DATA": lambda item: str(len(_at(item, "data", default=()))),
        "AGE": _age,
    },
    "PersistentVolumeClaim": {
        "STATUS": lambda item: str(_at(item, "status", "phase", default="Bound") or "Bound"),
        "AGE": _age,
    },
}
_WIDE: Final = frozenset({"IP", _NODE})


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="KIND[,KIND...] [NAME...] | KIND/NAME...")
@click.option("-n", "--namespace", default="", help="namespace  [default: default, or the context's]")
@options.tenancy_option
@click.option("-A", "--all-namespaces", is_flag=True, help="of all namespaces")
@click.option("-l", "--selector", "labels", multiple=True, metavar="KEY=VALUE", help="only those with this label")
@click.option("-w", "--watch", is_flag=True, help="show it anew until Ctrl-C")
@options.output_option
@options.pass_client
def get(client: Client, /, *, what: tuple[str, ...], watch: bool, **given: Any) -> None:
    """List objects: pods, deployments, jobs, services, configmaps and more."""

    def show() -> None:
        _show(client, what, given)

    output.repeat(show) if watch else show()


def _show(client: Client, what: Sequence[str], given: Mapping[str, Any]) -> None:
    found, is_all = list[tuple[type[meta.Object], list[Document]]](), given["all_namespaces"]
    namespace = None if is_all else (given["namespace"] or "default")
    asked = _asked(what)
    for kind, names in asked:
        params = {"namespace": namespace, "label": [one for text in given["labels"] for one in text.split(",")]}
        items: list[Document] = list(client.call("GET", f"/v1/objects/{kind.PLURAL}", ObjectList, params=params).items)
        if names:
            by_name = {_about(one)["name"]: one for one in items}
            if missing := [name for name in names if name not in by_name]:
                plural = kinds.full_name(kind).replace(kind.KIND.lower(), kind.PLURAL, 1)
                message = f'{plural} "{errors.readable(missing[0])}" not found'
                raise errors.NotFound(message, reason="NotFound", hint=f"`fairlead get {kind.PLURAL}` lists them")
            items = [by_name[name] for name in names]
        found.append((kind, items))
    if given["form"] in {"json", "yaml"}:
        every = [one for _, items in found for one in items]
        is_one = len(asked) == 1 and len(asked[0][1]) == 1
        output.show_value(
            every[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": every}, form=given["form"]
        )
        return
    shown = [(kind, items) for kind, items in found if items]
    if not shown:
        where = "" if is_all else f" in {errors.readable(str(namespace))} namespace"
        plaintext.echo(f"No resources found{where}.", err=True)
    for number, (kind, items) in enumerate(shown):
        if number and given["form"] != "name":
            plaintext.echo("")
        _table(kind, items, given["form"], is_all=is_all, is_prefixed=len(found) > 1)


def _asked(what: Sequence[str]) -> list[tuple[type[meta.Object], list[str]]]:
    """Return kinds with the names that are asked for: `pods`, `deploy,job`, `deploy web`, `deploy/web job/train`."""
    if "/" in what[0]:
        asked: dict[type[meta.Object], list[str]] = {}
        for one in what:
            kind, slash, name = one.partition("/")
            if not slash or not name:
                raise click.UsageError(f"{errors.readable(one)} is not KIND/NAME")
            asked.setdefault(kinds.find(kind), []).append(name)
        return list(asked.items())
    chosen = [kind for word in what[0].split(",") for kind in (kinds.ALL if word == "all" else (kinds.find(word),))]
    if len(chosen) > 1 and len(what) > 1:
        raise click.UsageError("name objects of one kind, or KIND/NAME of each")
    return [(kind, list(what[1:])) for kind in dict.fromkeys(chosen)]


def _table(kind: type[meta.Object], items: Sequence[Document], form: str, *, is_all: bool, is_prefixed: bool) -> None:
    def name(item: Document) -> str:
        plain = str(_about(item)["name"])
        return f"{kinds.full_name(kind)}/{plain}" if is_prefixed or form == "name" else plain

    columns = [Column[Document]("NAME", name)]
    if is_all:
        columns.insert(0, Column[Document]("NAMESPACE", lambda item: str(_about(item).get("namespace", ""))))
    texts = _COLUMNS.get(kind.KIND, {"AGE": _age})
    columns += [Column[Document](title, text, is_wide=title in _WIDE) for title, text in texts.items()]
    output.show_listing(items, columns, form=form, name=name)
