"""Describes objects of manifests as they are stored, and the outcome for each; without the web framework."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fairlead.plan.tenancy import secret
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.workloads import kinds


class ObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one object of a manifest."""

    kind: Annotated[str, msgspec.Meta(description="with its group, `deployment.apps`")]
    name: str
    namespace: str
    uid: Annotated[str, msgspec.Meta(description="empty: not known, or not stored")] = ""
    action: Annotated[str, msgspec.Meta(description="created, configured, unchanged, deleted, not found, in use")]
    before: Annotated[
        dict[str, Any] | None, msgspec.Meta(description="with dry_run: as it stands; null: it is not")
    ] = None
    after: Annotated[dict[str, Any] | None, msgspec.Meta(description="with dry_run: as it would stand")] = None


class ObjectChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes for the objects of a manifest, in their order."""

    items: tuple[ObjectChange, ...]
    warnings: Annotated[tuple[str, ...], msgspec.Meta(description="fields that are not carried out")] = ()


class ObjectList(msgspec.Struct, frozen=True, kw_only=True):
    """Objects as Kubernetes writes them; of Secrets without their values."""

    items: tuple[dict[str, Any], ...]


def document(item: meta.Object) -> dict[str, Any]:
    """Return an object as Kubernetes writes it."""
    body: dict[str, Any] = msgspec.to_builtins(item)
    return {"apiVersion": item.API_VERSION, "kind": item.KIND, **body}


def secret_document(one: secret.Described) -> dict[str, Any]:
    """Return a Secret as Kubernetes writes it, with the names of its values alone."""
    about = meta.ObjectMeta(
        name=one.name, namespace=one.namespace, creation_timestamp=one.note.created_at or None, uid=one.note.uid
    )
    return document(core.Secret(metadata=about, type="Opaque", data=dict.fromkeys(one.note.sizes, "")))


def change(item: meta.Object, action: str, **more: Any) -> ObjectChange:
    """Return the outcome for an object."""
    about = item.metadata
    return ObjectChange(
        kind=kinds.full_name(type(item)),
        name=about.name,
        namespace=about.namespace,
        uid=about.uid,
        action=action,
        **more,
    )
