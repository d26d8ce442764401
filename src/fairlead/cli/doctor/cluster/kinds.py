"""Judges whether a cluster serves our kinds as this version writes them.

Helm installs definitions and never upgrades them; an API server drops each field that a definition does not have, and
does not say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.cli.doctor.finding import Finding
from fairlead.store import port
from fairlead.wire.fairlead import firmwarebaseline, tenancy
from fairlead.wire.kubernetes import gpudevice, gpulease, meta, workload
from fairlead.wire.kubernetes.scheduling import queue

KINDS: Final[Mapping[type[meta.Object], tuple[str, str]]] = {
    gpudevice.GPUDevice: (
        "fail",
        "agents cannot publish GPUs: `fairlead gpus` and `kubectl get gpu` have nothing to show",
    ),
    gpulease.GPULease: ("warn", "agents that keep a ledger (lease.ledger=on) cannot publish who had which GPU"),
    firmwarebaseline.FirmwareBaseline: (
        "warn",
        "agents that verify GPUs (lease.reuse) cannot publish which firmware waits for approval",
    ),
    tenancy.Tenancy: ("warn", "`fairlead tenancy` has nothing to keep tenancies in"),
    queue.Queue: ("warn", "the scheduler knows no queues, and shares nothing out by them"),
}
"""What a missing definition means: its level, and why."""
_APPLY: Final = "helm leaves definitions out of an upgrade: `kubectl apply --server-side -f` the chart's crds/"
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How a cluster serves one kind of ours."""

    is_served: bool
    lacking: tuple[str, ...] = ()
    """Fields of this version that its definition does not have, as dotted paths."""


async def read(store: port.Store) -> dict[str, Served] | None:
    """Return how each kind is served, by its name; None: it may not be read. Raises: Unavailable."""
    found: dict[str, Served] = {}
    for kind in KINDS:
        name = f"{kind.PLURAL}.{kind.API_VERSION.partition('/')[0]}"
        try:
            found[kind.KIND] = _check(kind, await store.get(workload.CustomResourceDefinition, name))
        except errors.NotFound:
            found[kind.KIND] = Served(is_served=False)
        except errors.Denied:
            return None
    return found


def check(seen: Mapping[str, Served]) -> Iterator[Finding]:
    """Yield a finding for each kind that is missing or older than this program, or one that says that all is well."""
    is_well = True
    for kind, (level, why) in KINDS.items():
        one = seen[kind.KIND]
        if one.is_served and not one.lacking:
            continue
        is_well = False
        if not one.is_served:
            what, fix = f"{kind.KIND} is not installed, or not served", f"install the chart; {_APPLY}"
            yield Finding(check="crd", level=level, what=what, why=why, fix=fix)
            continue
        more = f" and {len(one.lacking) - _SHOWN} more" if len(one.lacking) > _SHOWN else ""
        fields = f"{', '.join(one.lacking[:_SHOWN])}{more}"
        yield Finding(
            check="crd",
            level="warn",
            what=f"the definition of {kind.KIND} is of another version: it lacks {fields}",
            why="the API server drops what is written there, without a word",
            fix=_APPLY,
        )
    if is_well:
        names = ", ".join(kind.KIND for kind in KINDS)
        yield Finding(check="crd", level="ok", what=f"{names} are installed and served")


def _check(kind: type[meta.Object], found: workload.CustomResourceDefinition) -> Served:
    if not any(one.type == "Established" and one.status == "True" for one in found.status.conditions):
        return Served(is_served=False)
    version = kind.API_VERSION.partition("/")[2]
    schema = next((one.schema.document for one in found.spec.versions if one.name == version and one.served), None)
    if schema is None:
        return Served(is_served=False)
    return Served(is_served=True, lacking=tuple(_lacking(msgspec.inspect.type_info(kind), schema)))


def _lacking(info: Any, schema: workload.Schema, path: str = "") -> Iterator[str]:
    """Yield the paths of a type's fields that a schema does not have, each with nothing below it."""
    for field in info.fields:
        if path == "" and field.encode_name == "metadata":
            continue
        below = schema.properties.get(field.encode_name)
        name = f"{path}{field.encode_name}"
        if below is None:
            yield name
        elif (inner := _struct(field.type)) is not None:
            yield from _lacking(inner, below.items or below, f"{name}.")


def _struct(info: Any) -> Any:
    """Return the struct in a field's type, None where there is none."""
    match info:
        case msgspec.inspect.Metadata():
            return _struct(info.type)
        case msgspec.inspect.UnionType():
            return next((made for one in info.types if (made := _struct(one)) is not None), None)
        case msgspec.inspect.VarTupleType():
            return _struct(info.item_type)
        case msgspec.inspect.StructType():
            return info
    return None
