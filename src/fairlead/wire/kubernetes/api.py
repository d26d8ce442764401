"""Declares what an API server says around objects: lists, watch events, refusals, and bodies without an object.

Typed subsets like every struct of this room. Lists and watch events hold their objects by kind, so they are made for a
kind by `page_decoder` and `object_decoder`, once each.
Source: apimachinery pkg/apis/meta/v1 types.go (ListMeta, Status, WatchEvent, DeleteOptions); core/v1 Binding.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes.meta import Object, Wire
from fairlead.wire.text import typedjson

T = TypeVar("T", bound=Object)


class ListMeta(Wire, frozen=True):
    """Which moment a list shows and where its next page begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Wire, Generic[T], frozen=True):
    """One page of a list; a real one is decoded by `page_decoder`."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] = ()


class StatusCause(Wire, frozen=True):
    """One field or rule behind a refusal."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Wire, frozen=True):
    """What a refusal is about."""

    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(Wire, frozen=True):
    """The answer to a request that has no object to answer with, refusals above all."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class WatchEvent(Wire, frozen=True):
    """One line of a watch; what the object is depends on the type."""

    type: str
    """`ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`."""
    object: msgspec.Raw


class _BookmarkMeta(Wire, frozen=True):
    resource_version: str


class Bookmark(Wire, frozen=True):
    """Nothing happened up to this version; everything but the version is empty."""

    metadata: _BookmarkMeta


watch_event: Final = typedjson.Decoder(WatchEvent)
bookmark: Final = typedjson.Decoder(Bookmark)
status: Final = typedjson.Decoder(Status)


@functools.cache
def object_decoder(kind: type[T]) -> typedjson.Decoder[T]:
    """Return the decoder of one object."""
    return typedjson.Decoder(kind)


@functools.cache
def page_decoder(kind: type[T]) -> typedjson.Decoder[Page[T]]:
    """Return the decoder of one page of objects."""
    return typedjson.Decoder(cast(Any, Page)[kind])


def binding(name: str, namespace: str, uid: str, version: str, node: str) -> bytes:
    """Return the body that binds a pod to a node, if it is still the pod of that uid and version."""
    about = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": target})


def eviction(name: str, namespace: str, uid: str, *, grace_s: int | None) -> bytes:
    """Return the body that evicts a pod, if it is still the pod of that uid; None leaves the grace to the pod."""
    options: dict[str, Any] = {"preconditions": {"uid": uid}}
    options |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    about = {"name": name, "namespace": namespace}
    return msgspec.json.encode(
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about, "deleteOptions": options}
    )


def delete_options(*, grace_s: int | None, uid: str | None) -> bytes:
    """Return the body of a deletion; None leaves a part to the server. Dependants go later, by the collector."""
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    body |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    body |= {} if uid is None else {"preconditions": {"uid": uid}}
    return msgspec.json.encode(body)


class _AccessStatus(Wire, frozen=True):
    allowed: bool = False


class _AccessReview(Wire, frozen=True):
    status: _AccessStatus = _AccessStatus()


def access_review(verb: str, resource: str, *, group: str, part: str, namespace: str, user: str = "") -> bytes:
    """Return the question whether the caller, or a user, may do this. Source: authorization.k8s.io/v1 types.go."""
    asked = {"verb": verb, "resource": resource, "group": group, "subresource": part, "namespace": namespace}
    spec: dict[str, Any] = {"resourceAttributes": {name: value for name, value in asked.items() if value}}
    if user:
        spec["user"] = user
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    return msgspec.json.encode({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})


def rules_review(namespace: str) -> bytes:
    """Return the question what the caller may do in a namespace. Source: authorization.k8s.io/v1 types.go."""
    spec = {"namespace": namespace}
    return msgspec.json.encode(
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": spec}
    )


class Rule(Wire, frozen=True):
    """What may be done with some resources."""

    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()

    def allows(self, verb: str, resource: str, group: str) -> bool:
        """Return whether it covers every object of a resource, or of a subresource `pods/status`."""
        part = resource.partition("/")[2]
        names = {resource, "*"} | ({f"*/{part}"} if part else set())
        return (
            not self.resource_names
            and bool({verb, "*"} & set(self.verbs))
            and bool({group, "*"} & set(self.api_groups))
            and bool(names & set(self.resources))
        )


class _RulesStatus(Wire, frozen=True):
    resource_rules: tuple[Rule, ...] = ()


class _RulesReview(Wire, frozen=True):
    status: _RulesStatus = _RulesStatus()


def parse_rules(body: bytes) -> tuple[Rule, ...]:
    """Return the answer to `rules_review`. Raises: ProtocolError."""
    try:
        return typedjson.decode(body, type=_RulesReview).status.resource_rules
    except msgspec.MsgspecError as error:
        message = f"answer about permissions cannot be read: {error}"
        raise errors.ProtocolError(message, reason="ObjectUnreadable") from error


def is_allowed(body: bytes) -> bool:
    """Return the answer to `access_review`. Raises: ProtocolError."""
    try:
        return typedjson.decode(body, type=_AccessReview).status.allowed
    except msgspec.MsgspecError as error:
        message = f"answer about permissions cannot be read: {error}"
        raise errors.ProtocolError(message, reason="ObjectUnreadable") from error
