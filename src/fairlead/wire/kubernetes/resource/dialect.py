"""Reads and writes the objects of resource.k8s.io in every version that a cluster may serve.

The code speaks v1 alone. v1beta2 differs from it in the name; v1beta1 keeps a device's fields under `basic`, and those
of `exactly` in the request itself. Documents are converted before they become structs and after they were ones, so
that what a version cannot say is known: fields that nothing reads are listed, never dropped in silence. They are named
by their place in v1, as an API server names them in its refusals.
Source: kubernetes pkg/apis/resource/v1beta1/conversion.go (behaviour).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes import manifest, meta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

GROUP: Final = "resource.k8s.io"
V1: Final = f"{GROUP}/v1"
V1BETA2: Final = f"{GROUP}/v1beta2"
V1BETA1: Final = f"{GROUP}/v1beta1"
V1ALPHA3: Final = f"{GROUP}/v1alpha3"

Kind = type[meta.Object]
_EVERYWHERE: Final[tuple[Kind, ...]] = (ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass)
SERVES: Final[Mapping[str, tuple[Kind, ...]]] = {
    V1: (*_EVERYWHERE, DeviceTaintRule),
    V1BETA2: (*_EVERYWHERE, DeviceTaintRule),
    V1BETA1: _EVERYWHERE,
    V1ALPHA3: (ResourcePoolStatusRequest,),
}
"""Kinds by the versions that are read and written here, the newest version first."""
KINDS: Final[tuple[Kind, ...]] = (*SERVES[V1], ResourcePoolStatusRequest)

_EXACTLY: Final = (
    *("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"),
    "derivedAttributes",
)
"""Fields that a request of v1beta1 has itself."""
_REQUEST: Final = ("name", "firstAvailable")
_DEVICE: Final = ("name", "basic")


def newest(served: Iterable[str], kind: Kind) -> str | None:
    """Return the version in which to read and write a kind, None: a cluster that serves these has none of them.

    Args:    served: versions of the API server, `resource.k8s.io/v1beta1`, in any order.
    """
    offered = set(served)
    return next((version for version, kinds in SERVES.items() if version in offered and kind in kinds), None)


def read(document: Any, *, version: str | None = None, kind: str | None = None) -> manifest.Manifest:
    """Read one object; the item is of v1, and `ignored` lists the fields that nothing reads.

    Args:    version, kind: of an item of a list, which often names neither; None: as the document says.
    Raises:  RequestError: not an object of this group; Invalid: a field has the wrong type.
    """
    if isinstance(document, dict):
        named = {"apiVersion": version, "kind": kind}
        document = {**document, **{key: value for key, value in named.items() if value is not None}}
    found, unknown = upgrade(document)
    one = manifest.convert(found, KINDS)
    return dataclasses.replace(one, ignored=(*unknown, *one.ignored))


def upgrade(document: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a document in v1, and the fields that its own version does not have; v1 itself comes back as it is.

    A document that is not of this group comes back unchanged too: reading it says what is wrong.
    Raises: Invalid: `basic` is not a map.
    """
    version = document.get("apiVersion") if isinstance(document, dict) else None
    if not isinstance(version, str) or version not in {V1BETA1, V1BETA2}:
        return document, ()
    if document.get("kind") not in [kind.KIND for kind in SERVES[version]]:
        return document, ()
    converted = {**document, "apiVersion": V1}
    unknown: list[str] = []
    if version == V1BETA1:
        _convert(converted, _Upgrade(unknown))
    return converted, tuple(unknown)


def emit(item: meta.Object, version: str) -> dict[str, Any]:
    """Return an object as a document of a version.

    Raises: RequestError: the version does not have the kind.
    """
    if type(item) not in SERVES.get(version, ()):
        have = ", ".join(each for each, kinds in SERVES.items() if type(item) in kinds)
        message = f"{version} has no kind {item.KIND}"
        raise errors.RequestError(message, reason="KindUnknown", hint=f"versions that have it: {have}")
    # By way of JSON: lists are lists in it, and tuples in what `to_builtins` gives.
    document = {"apiVersion": version, "kind": item.KIND, **msgspec.json.decode(msgspec.json.encode(item))}
    if version == V1BETA1:
        _convert(document, _Downgrade())
    return document


class _Upgrade:
    """Converts the parts of an object that v1beta1 writes in its own way."""

    def __init__(self, unknown: list[str]) -> None:
        self._unknown = unknown

    def spec(self, spec: dict[str, Any], path: str) -> None:  # noqa: ARG002 - as of the other direction
        """Drop the values that mean `not given` in a slice of v1beta1."""
        for key, nothing in (("nodeName", ""), ("allNodes", False)):
            if spec.get(key) == nothing and isinstance(spec.get(key), type(nothing)):
                del spec[key]

    def device(self, device: dict[str, Any], path: str) -> dict[str, Any]:
        """Take the fields of a device out of `basic`."""
        self._strangers(device, _DEVICE, path)
        basic = device.get("basic")
        if isinstance(basic, dict):
            # `name` in `basic` is a field that v1beta1 does not have: it must not become the device's.
            self._unknown += [f"{path}.basic.name"] if "name" in basic else []
            return {**{key: value for key, value in basic.items() if key != "name"}, **_kept(device, ("name",))}
        if basic is not None:
            raise errors.Invalid(f"{path}.basic: expected a map", reason="ManifestInvalid", field=f"{path}.basic")
        return _kept(device, ("name",))

    def request(self, request: dict[str, Any], path: str) -> dict[str, Any]:
        """Put the fields of a plain request into `exactly`."""
        self._strangers(request, (*_REQUEST, *_EXACTLY), path)
        exactly = {key: value for key, value in _kept(request, _EXACTLY).items() if not _is_nothing(value)}
        return {**_kept(request, _REQUEST), **({"exactly": exactly} if exactly else {})}

    def _strangers(self, item: dict[str, Any], known: tuple[str, ...], path: str) -> None:
        self._unknown += [f"{path}.{key}" for key in item if key not in known]


class _Downgrade:
    """Writes the parts of an object as v1beta1 does."""

    def spec(self, spec: dict[str, Any], path: str) -> None:
        """Leave a slice's own fields as they are: v1beta1 reads them all."""

    def device(self, device: dict[str, Any], path: str) -> dict[str, Any]:  # noqa: ARG002
        """Put the fields of a device under `basic`."""
        basic = {key: value for key, value in device.items() if key != "name"}
        return {**_kept(device, ("name",)), "basic": basic}

    def request(self, request: dict[str, Any], path: str) -> dict[str, Any]:  # noqa: ARG002
        """Put the fields of `exactly` into the request."""
        return {**_kept(request, _REQUEST), **request.get("exactly", {})}


def _convert(document: dict[str, Any], way: _Upgrade | _Downgrade) -> None:
    """Convert the spec of a document in place; maps and lists that change are copied first."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return
    document["spec"] = spec = dict(spec)
    match document.get("kind"):
        case "ResourceSlice":
            way.spec(spec, "spec")
            _each(spec, "devices", way.device, "spec")
        case "ResourceClaim":
            _requests(spec, way, "spec")
        case "ResourceClaimTemplate" if isinstance(spec.get("spec"), dict):
            spec["spec"] = dict(spec["spec"])
            _requests(spec["spec"], way, "spec.spec")


def _requests(spec: dict[str, Any], way: _Upgrade | _Downgrade, path: str) -> None:
    if isinstance(spec.get("devices"), dict):
        spec["devices"] = dict(spec["devices"])
        _each(spec["devices"], "requests", way.request, f"{path}.devices")


def _each(owner: dict[str, Any], key: str, convert: Callable[[dict[str, Any], str], dict[str, Any]], path: str) -> None:
    items = owner.get(key)
    if isinstance(items, list):
        owner[key] = [
            convert(item, f"{path}.{key}[{at}]") if isinstance(item, dict) else item for at, item in enumerate(items)
        ]


def _kept(item: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: item[key] for key in keys if key in item}


def _is_nothing(value: object) -> bool:
    """Return whether v1beta1 writes a field so that was not given; `adminAccess: false` was."""
    return value is None or value == "" or (value == 0 and not isinstance(value, bool))
