"""Defines what each verb does to one object: Kubernetes' rules as pure functions between documents.

`None` as a result means: the object is removed. An unchanged result equals the stored document and is not written. Who
else is affected (dependants, namespaces) is decided in `transaction`; names and labels are checked in `validation`.
Source: Kubernetes API conventions (metadata, concurrency control); apiserver registry `rest/{create,update,delete}.go`
and `generic/registry/store.go`; core/v1 pod strategy `CheckGracefulDelete`.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from fairlead import errors
from fairlead.store.embedded import document as documents
from fairlead.store.embedded.document import Document
from fairlead.wire.kubernetes import core

POD = "v1/Pod"
NODE = "v1/Node"
NAMESPACE = "v1/Namespace"

SYSTEM_METADATA = (
    "name",
    "namespace",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
"""Metadata that only the store writes."""


def stamp(moment: dt.datetime) -> str:
    """Return a time as metadata carries it: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def create(kind: str, given: Document, *, uid: str, now: dt.datetime) -> Document:
    """Return the object as it is first stored.

    Status is the business of `update_status` and dropped, except for nodes, which register with theirs; pods begin
    Pending and namespaces Active. Raises: Invalid: resourceVersion is set.
    """
    about = documents.metadata(given)
    if about.get("resourceVersion"):
        message = (
            f"{describe(given)}: resourceVersion {about['resourceVersion']} must not be set on an object to create"
        )
        raise errors.Invalid(message, reason="ResourceVersionSet", hint="clear it, or update the object instead")
    initial: dict[str, Any] = {POD: {"phase": "Pending"}, NAMESPACE: {"phase": "Active"}}
    status = given.get("status") if kind == NODE else initial.get(kind)
    created = {name: value for name, value in given.items() if name != "status"}
    created |= {} if status is None else {"status": status}
    return documents.with_metadata(
        created,
        uid=uid,
        generation=1,
        creationTimestamp=stamp(now),
        deletionTimestamp=None,
        deletionGracePeriodSeconds=None,
    )


def update(old: Document, seen: Document, given: Document) -> Document | None:
    """Return the stored object with the writer's metadata and spec, status untouched.

    Args:    old: as stored.   seen: what the writer's type sees of `old`.   given: what the writer wants.
    Raises:  Conflict: stale resourceVersion or another uid; Invalid: a finalizer is added to a dying object.
    """
    check_identity(old, given)
    about = documents.merge(old["metadata"], seen["metadata"], documents.metadata(given))
    merged = documents.merge(documents.body(old), documents.body(seen), documents.body(given))
    return _replace(old, about, merged)


def apply(old: Document, given: Document, *, manager: str) -> Document | None:
    """Return the stored object with the given fields set, and those gone that this manager gave before and now omits.

    What a manager gave is remembered in `metadata.managedFields`. Finalizers are a set: others' are never removed.
    """
    check_identity(old, given)
    wanted = _applied_part(given)
    entries: list[Document] = old["metadata"].get("managedFields", [])
    earlier: Document = next((entry["document"] for entry in entries if entry["manager"] == manager), {"metadata": {}})
    about = documents.merge(old["metadata"], earlier["metadata"], wanted["metadata"])
    about["finalizers"] = _united(old, earlier, wanted)
    others = [entry for entry in entries if entry["manager"] != manager]
    about["managedFields"] = entries if earlier == wanted else [*others, _entry(manager, wanted)]
    merged = documents.merge(documents.body(old), documents.body(earlier), documents.body(wanted))
    return _replace(old, about, merged)


def first_applied(given: Document, *, manager: str) -> Document:
    """Return the object to create when `apply` finds none, with the manager's fields remembered."""
    return documents.with_metadata(given, managedFields=[_entry(manager, _applied_part(given))])


def _entry(manager: str, wanted: Document) -> Document:
    return {"manager": manager, "operation": "Apply", "document": wanted}


def _applied_part(given: Document) -> Document:
    about = {name: value for name, value in given["metadata"].items() if name not in SYSTEM_METADATA}
    return {**documents.body(given), "metadata": about}


def _united(old: Document, earlier: Document, wanted: Document) -> list[str]:
    gone = set(earlier["metadata"].get("finalizers", ())) - set(wanted["metadata"].get("finalizers", ()))
    names = [*old["metadata"].get("finalizers", ()), *wanted["metadata"].get("finalizers", ())]
    return [name for name in dict.fromkeys(names) if name not in gone]


def _replace(old: Document, about: Document, merged: Document) -> Document | None:
    stored = old["metadata"]
    about = {name: value for name, value in about.items() if name not in SYSTEM_METADATA and value != []}
    about |= {name: stored[name] for name in SYSTEM_METADATA if name in stored}
    if stored.get("deletionTimestamp"):
        _check_finalizers(old, about)
        if is_finished(about):
            return None
    if merged != documents.body(old):
        about["generation"] = stored.get("generation", 0) + 1
    status = {"status": old["status"]} if "status" in old else {}
    return {**merged, "metadata": about, **status}


def _check_finalizers(old: Document, about: Document) -> None:
    added = set(about.get("finalizers", ())) - set(old["metadata"].get("finalizers", ()))
    if added:
        message = (
            f"{describe(old)} is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object "
            f"is being deleted, found new finalizers {sorted(added)}"
        )
        raise errors.Invalid(message, reason="ObjectTerminating")


def update_status(old: Document, seen: Document, given: Document) -> Document:
    """Return the stored object with the writer's status and nothing else changed. Raises: Conflict."""
    check_identity(old, given)
    status = documents.merge(old.get("status", {}), seen.get("status", {}), given.get("status", {}))
    kept = {name: value for name, value in old.items() if name != "status"}
    return kept | ({"status": status} if status else {})


def delete(kind: str, old: Document, *, grace_s: int | None, now: dt.datetime) -> Document | None:
    """Return the object marked for deletion, unchanged where it already is, or None where it may go at once."""
    about = documents.metadata(old)
    if about.get("deletionTimestamp"):
        return _shorten(kind, old, grace_s)
    wait_s = _grace(kind, old, grace_s)
    if not wait_s and not about.get("finalizers"):
        return None
    return documents.with_metadata(
        old,
        deletionTimestamp=stamp(now + dt.timedelta(seconds=wait_s)),
        deletionGracePeriodSeconds=wait_s,
        generation=about.get("generation", 0) + 1,
    )


def _grace(kind: str, old: Document, asked_s: int | None) -> int:
    """Return how long a deletion waits: only pods that a node may be running wait at all."""
    spec = old.get("spec", {})
    ended = old.get("status", {}).get("phase") in core.ENDED_PHASES
    if kind != POD or not spec.get("nodeName") or ended:
        return 0
    wait_s: int = spec.get("terminationGracePeriodSeconds", 30) if asked_s is None else asked_s
    return wait_s if wait_s >= 0 else 1


def _shorten(kind: str, old: Document, asked_s: int | None) -> Document | None:
    """Bring a running deletion forward; a later end than the one promised is ignored."""
    about = documents.metadata(old)
    waiting_s = about.get("deletionGracePeriodSeconds", 0)
    sooner = kind == POD and asked_s is not None and asked_s < waiting_s
    if not sooner or asked_s is None:
        return None if is_finished(about) else old
    if asked_s <= 0 and not about.get("finalizers"):
        return None
    end = dt.datetime.fromisoformat(about["deletionTimestamp"]) + dt.timedelta(seconds=max(asked_s, 0) - waiting_s)
    return documents.with_metadata(old, deletionTimestamp=stamp(end), deletionGracePeriodSeconds=max(asked_s, 0))


def is_finished(about: Document) -> bool:
    """Return whether a dying object may go: no finalizer holds it, and no node still stops it."""
    return not about.get("finalizers") and not about.get("deletionGracePeriodSeconds")


def check_identity(old: Document, given: Document) -> None:
    """Refuse a writer that read another version, or another object of the same name. Raises: Conflict."""
    stored, about = old["metadata"], documents.metadata(given)
    check_uid(old, about.get("uid"))
    version = about.get("resourceVersion")
    if version and version != stored["resourceVersion"]:
        message = (
            f"{describe(old)} has been modified: version {version} was read, {stored['resourceVersion']} is stored"
        )
        raise errors.Conflict(message, reason="StaleVersion", hint="read the object again and repeat the change")


def check_uid(old: Document, uid: str | None) -> None:
    """Refuse to touch a successor of the object that was meant. Raises: Conflict."""
    found = old["metadata"]["uid"]
    if uid and uid != found:
        message = f"{describe(old)} has uid {found}, not {uid}: the object meant is gone and another has its name"
        raise errors.Conflict(message, reason="UidMismatch", hint="read the object again")


def refuse_uid_of_none(given: Document) -> None:
    """Refuse to recreate an object where the writer meant one that was there. Raises: Conflict."""
    uid = documents.metadata(given).get("uid")
    if uid:
        message = f"{describe(given)} with uid {uid} is gone: there is no object of this name"
        raise errors.Conflict(message, reason="UidMismatch", hint="read the object again")


def describe(document: Document) -> str:
    """Return `Pod team/name` for messages."""
    about = documents.metadata(document)
    name = about.get("name") or f"{about.get('generateName', '')}*"
    return f"{document['kind']} {about['namespace']}/{name}" if about.get("namespace") else f"{document['kind']} {name}"
