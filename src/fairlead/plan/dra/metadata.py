"""Says what a container may read of its claim's devices: one file a request, mounted where programs look for it. Pure.

A file is a stream of JSON objects, one a version of the API, the newest first. KubeVirt finds a virtual machine's GPU
by it.
Source: KEP-5304; k8s.io/dynamic-resource-allocation, api/metadata v1beta1 and v1alpha1, kubeletplugin/metadata.go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec

from fairlead.plan.dra.preparation import CDI_KIND, Preparation, PreparedDevice
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire
from fairlead.wire.kubernetes.resource.device import DeviceAttribute

VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""Newest first: a reader takes the first that it knows."""
FOLDER: Final = "dra-device-metadata"
"""Below the driver's own folder."""
_LONGEST_NAME: Final = 63
"""Of a CDI device, while a request's name alone may have so many; the scheduler's own have 21."""
_CONTAINER: Final = PurePosixPath("/var/run/kubernetes.io/dra-device-attributes")

Attributes = Mapping[str, Mapping[str, DeviceAttribute]]
"""By device."""


class _Device(Wire, frozen=True):
    driver: str
    pool: str
    name: str
    attributes: Mapping[str, DeviceAttribute] = {}


class _Request(Wire, frozen=True):
    name: str
    devices: tuple[_Device, ...] = ()


class _Metadata(Wire, frozen=True):
    kind: str
    api_version: str
    metadata: ObjectMeta
    pod_claim_name: str | None = None
    requests: tuple[_Request, ...] = ()


def requests(preparation: Preparation) -> Iterator[tuple[str, tuple[PreparedDevice, ...]]]:
    """Yield each request of a claim, by its base name, with its devices."""
    found: dict[str, list[PreparedDevice]] = {}
    for one in preparation.devices:
        found.setdefault(one.request, []).append(one)
    yield from ((name, tuple(devices)) for name, devices in found.items())


def emit(preparation: Preparation, devices: tuple[PreparedDevice, ...], driver: str, attributes: Attributes) -> bytes:
    """Return the file of one request. Args: devices: of the request."""
    about = ObjectMeta(name=preparation.name, namespace=preparation.namespace, uid=preparation.uid, generation=1)
    listed = tuple(
        _Device(driver=driver, pool=one.pool, name=one.device, attributes=_attributes(one, attributes))
        for one in devices
    )
    request = _Request(name=devices[0].reference, devices=listed)
    return b"".join(
        msgspec.json.encode(
            _Metadata(
                kind="DeviceMetadata",
                api_version=version,
                metadata=about,
                pod_claim_name=preparation.pod_claim or None,
                requests=(request,),
            )
        )
        + b"\n"
        for version in VERSIONS
    )


def _attributes(device: PreparedDevice, attributes: Attributes) -> Mapping[str, DeviceAttribute]:
    """Return what is published of a device, with the UUID of a MIG device that was made for the claim."""
    found = attributes.get(device.device, {})
    return {**found, "uuid": DeviceAttribute(string=device.instance)} if device.instance else found


def host_path(folder: PurePosixPath, preparation: Preparation, request: str) -> PurePosixPath:
    """Return where a request's file is on the node. Args: folder: of the driver."""
    return folder / FOLDER / f"{preparation.namespace}_{preparation.name}" / request / "metadata.json"


def container_path(preparation: Preparation, request: str, driver: str) -> str:
    """Return where a container finds it: by the pod's own name for a claim that a template made."""
    kind, name = (
        ("resourceclaimtemplates", preparation.pod_claim)
        if preparation.pod_claim
        else ("resourceclaims", preparation.name)
    )
    return str(_CONTAINER / kind / name / request / f"{driver}-metadata.json")


def cdi_name(preparation: Preparation, request: str) -> str:
    """Return the qualified name by which a container gets the file."""
    name = f"{preparation.uid}-metadata-{request}"
    if len(name) > _LONGEST_NAME:
        name = f"{preparation.uid}-metadata-{hashlib.sha256(request.encode()).hexdigest()[:16]}"
    return f"{CDI_KIND}={name}"
