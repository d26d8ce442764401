"""Declares what every Kubernetes object carries, and the table of kinds.

Typed subsets: structs hold the fields we read; unknown fields in input are skipped (tolerant reader). All values are
frozen; `msgspec.structs.replace` makes changed copies. Times are RFC 3339 strings, as on the wire.
Source: apimachinery pkg/apis/meta/v1 types.go.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of every struct on the Kubernetes wire: camelCase keys, defaults left out.

    The garbage collector does not track them (`gc=False`): decoded trees have no cycles, and walking 100,000 cached
    pods would stop a scheduler again and again.
    """


class LabelSelectorRequirement(Wire, frozen=True):
    """One condition on labels."""

    key: str
    operator: str
    """`In`, `NotIn`, `Exists` or `DoesNotExist`."""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    """Objects by their labels: everything must hold, and an empty one selects all."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class OwnerReference(Wire, frozen=True):
    """An owner of the object; deletion of the last owner deletes the object too."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire, frozen=True):
    """Identity, version and labels of an object."""

    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(Wire, frozen=True):
    """One named observation about an object."""

    type: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


def with_condition(conditions: Iterable[Condition], wanted: Condition) -> tuple[Condition, ...]:
    """Return the conditions with the one of that type as wanted, in its old place, or at the end where it is new.

    While its status stays the same it keeps the time of its last transition, whatever time `wanted` carries.
    """
    found = tuple(conditions)
    for place, old in enumerate(found):
        if old.type == wanted.type:
            is_same = old.status == wanted.status
            kept = msgspec.structs.replace(wanted, last_transition_time=old.last_transition_time) if is_same else wanted
            return (*found[:place], kept, *found[place + 1 :])
    return (*found, wanted)


def find_condition(conditions: Iterable[Condition], name: str) -> Condition | None:
    """Return the condition of that type, None where there is none."""
    return next((item for item in conditions if item.type == name), None)


class Object(Protocol):
    """Any top-level kind: a frozen struct with `metadata`, and what its class says of the kind."""

    API_VERSION: ClassVar[str]
    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    NAMESPACED: ClassVar[bool]

    @property
    def metadata(self) -> ObjectMeta:
        """Identity, version and labels."""
        ...


T = TypeVar("T", bound=Object)
LARGEST_BYTES: Final = 3 << 19
"""What etcd accepts of one object; larger ones would work on one machine and fail on a cluster."""


def encode(item: Object) -> bytes:
    """Return the object as JSON with apiVersion and kind."""
    body: dict[str, Any] = msgspec.to_builtins(item)
    return msgspec.json.encode({"apiVersion": item.API_VERSION, "kind": item.KIND, **body})


def now() -> str:
    """Return the time as Kubernetes writes it in events: RFC 3339, UTC, microseconds."""
    return emit_time(time.time())


def emit_time(at: float) -> str:
    """Return Unix seconds in the form of `now`."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def emit_known(at: float) -> str:
    """Return a time as `emit_time` does; empty: it is 0, not known."""
    return emit_time(at) if at else ""


def timestamp(text: str | None) -> float | None:
    """Return an RFC 3339 time as Unix seconds; None stays None."""
    return None if text is None else dt.datetime.fromisoformat(text).timestamp()
