"""Reads the checkpoint of NVIDIA's DRA driver: which ResourceClaims it has prepared on a node.

The file holds up to two views of one state. `v1` is what early releases read: completed claims without their names,
under the checksum beside it. `v2` has names, stages and the boot, and a checksum of its own. The sums are taken over
the bytes as they were written: NVIDIA's driver decodes and encodes again before it compares, and has refused its own
file three times when a release added a field. A view that a later release adds beside these is left out, as that
driver's own downgrade does.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin (checkpoint.go, checkpointv.go, prepared.go);
kubernetes pkg/util/hash, DeepHashObject; FNV-1a, 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaimStatus
from fairlead.wire.text import typedjson

NAME: Final = "checkpoint.json"
"""In the driver's own folder."""
DAMAGED: Final = "CheckpointDamaged"
NEWER: Final = "CheckpointNewer"
COMPLETED: Final = "PrepareCompleted"
_FNV_BASIS: Final = 0x811C_9DC5
_FNV_PRIME: Final = 0x0100_0193
_SUM_V2: Final = re.compile(rb'\A\{"checksum":[0-9]{1,20}')
_BYTES: Final = tuple(str(number).encode() for number in range(256))


@frozen
class CheckpointedDevice:
    """One device that was prepared."""

    name: str
    uuid: str
    """Of the GPU, or of the MIG device."""
    is_passthrough: bool = False


@frozen
class CheckpointedClaim:
    """One claim of the checkpoint."""

    uid: str
    namespace: str = ""
    """Empty, as the name is: the early view does not have them."""
    name: str = ""
    is_completed: bool = True
    status: ResourceClaimStatus = ResourceClaimStatus()
    """As it was when the claim was prepared."""
    devices: tuple[CheckpointedDevice, ...] = ()
    daemon: str = ""
    """Id of the Deployment that is its MPS control daemon; empty: it has none."""

    @property
    def words(self) -> str:
        """Name it for messages."""
        return errors.readable(f"{self.namespace}/{self.name}" if self.name else self.uid)[:200]


@frozen
class Checkpoint:
    """What a node's driver had prepared."""

    boot_id: str = ""
    """Of the boot in which the file was last found right; empty: it does not say."""
    claims: tuple[CheckpointedClaim, ...] = ()


class _Device(msgspec.Struct, frozen=True):
    name: str = msgspec.field(default="", name="DeviceName")


class _Info(msgspec.Struct, frozen=True):
    uuid: str = ""


class _Concrete(msgspec.Struct, frozen=True):
    uuid: str = msgspec.field(default="", name="migUUID")


class _Made(msgspec.Struct, frozen=True):
    info: _Info | None = None
    concrete: _Concrete | None = None
    device: _Device | None = None


class _Entry(msgspec.Struct, frozen=True):
    gpu: _Made | None = None
    mig: _Made | None = None
    vfio: _Made | None = None


class _State(msgspec.Struct, frozen=True):
    daemon: str = msgspec.field(default="", name="mpsControlDaemonID")


class _Group(msgspec.Struct, frozen=True):
    devices: tuple[_Entry, ...] | None = None
    state: _State | None = msgspec.field(default=None, name="configState")


class _Claim(msgspec.Struct, frozen=True):
    stage: str = msgspec.field(default=COMPLETED, name="checkpointState")
    status: ResourceClaimStatus = ResourceClaimStatus()
    groups: tuple[_Group | None, ...] | None = msgspec.field(default=None, name="preparedDevices")
    name: str = ""
    namespace: str = ""


class _View(msgspec.Struct, frozen=True):
    checksum: int = 0
    claims: Mapping[str, _Claim] | None = msgspec.field(default=None, name="preparedClaims")
    boot_id: str = msgspec.field(default="", name="nodeBootID")


def read(data: bytes) -> Checkpoint:
    """Return what a checkpoint holds.

    Raises: ProtocolError: it is damaged or was written by half (`CheckpointDamaged`), or has no view that is known here
            (`CheckpointNewer`).
    """
    try:
        document = typedjson.decode(data, type=dict[str, msgspec.Raw])
        if (newest := document.get("v2")) is not None and bytes(newest) != b"null":
            return _read_v2(bytes(newest))
        if (early := document.get("v1")) is not None and bytes(early) != b"null":
            return _read_v1(bytes(early), document.get("checksum"))
        views = sorted(key for key in document if re.fullmatch(r"v[0-9]{1,4}", key))
    except msgspec.MsgspecError as error:
        raise _damaged(str(error)) from error
    if not views:
        raise _damaged("it has neither of the views v1 and v2")
    message = f"the checkpoint has the view {', '.join(views)[:60]} alone, and v1 and v2 are known here"
    hint = "a newer release of NVIDIA's driver wrote it: end the pods of its claims, they are not taken over"
    raise errors.ProtocolError(message, reason=NEWER, hint=hint)


def emit_checksum(data: bytes) -> int:
    """Return Kubernetes' checksum of a checkpoint's bytes: FNV-1a over Go's way of writing them as numbers."""
    text = b"([]uint8)[" + b" ".join([_BYTES[one] for one in data]) + b"]"
    found = _FNV_BASIS
    for letter in text:
        found = ((found ^ letter) * _FNV_PRIME) & 0xFFFF_FFFF
    return found


def _read_v2(raw: bytes) -> Checkpoint:
    view = typedjson.decode(raw, type=_View)
    summed, count = _SUM_V2.subn(b'{"checksum":0', raw, count=1)
    _assert_sum(summed if count else raw, view.checksum)
    return Checkpoint(boot_id=view.boot_id, claims=tuple(_claims(view)))


def _read_v1(raw: bytes, checksum: msgspec.Raw | None) -> Checkpoint:
    view = typedjson.decode(raw, type=_View)
    _assert_sum(b'{"checksum":0,"v1":' + raw + b"}", typedjson.decode(bytes(checksum or b"0"), type=int))
    return Checkpoint(claims=tuple(_claims(view)))


def _assert_sum(data: bytes, said: int) -> None:
    if (found := emit_checksum(data)) != said:
        raise _damaged(f"its checksum is {found}, and it says {said}")


def _claims(view: _View) -> Iterator[CheckpointedClaim]:
    for uid, claim in (view.claims or {}).items():
        groups = [group for group in claim.groups or () if group is not None]
        yield CheckpointedClaim(
            uid=uid,
            namespace=claim.namespace,
            name=claim.name,
            is_completed=claim.stage == COMPLETED,
            status=claim.status,
            devices=tuple(one for group in groups for entry in group.devices or () for one in _devices(entry)),
            daemon=next((group.state.daemon for group in groups if group.state and group.state.daemon), ""),
        )


def _devices(entry: _Entry) -> Iterator[CheckpointedDevice]:
    for made in (entry.gpu, entry.mig, entry.vfio):
        if made is None or made.device is None:
            continue
        told = made.concrete or made.info
        uuid = told.uuid if told is not None else ""
        yield CheckpointedDevice(name=made.device.name, uuid=uuid, is_passthrough=made is entry.vfio)


def _damaged(why: str) -> errors.ProtocolError:
    message = f"the checkpoint of NVIDIA's DRA driver is damaged: {errors.readable(why)[:200]}"
    return errors.ProtocolError(message, reason=DAMAGED, hint="the pods of its claims keep their GPUs until they end")
