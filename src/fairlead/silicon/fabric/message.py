"""Encodes the calls of a Fabric Manager and their answers as JSON, for the agent beside it and its clients.

There are seven calls, and what an answer may hold is typed: one of other fields, other types or more than a fabric can
have is no answer. An error crosses with its return code, from which the other side makes its own words; where there is
none, with its words, which are data.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from fairlead import errors
from fairlead.model.fabric import VERSION, FabricGPU, FailedDevice, ManagerIdentity, Partition, UnsupportedPartition
from fairlead.silicon.fabric import abi, listing, result

Id = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Text = Annotated[str, msgspec.Meta(max_length=abi.UUID_BYTES)]
Words = Annotated[str, msgspec.Meta(max_length=2400)]
Module = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call."""

    call: Literal["identify", "list", "activate", "deactivate", "set", "failed", "unsupported"]
    partitions: Annotated[tuple[Id, ...], msgspec.Meta(max_length=abi.MOST_PARTITIONS)] = ()


class _GPU(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    module: Module
    uuid: Text = ""
    pci: Text = ""
    links: Id = 0
    most_links: Id = 0
    link_mbps: Id = 0


class _Partition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id
    gpus: Annotated[tuple[_GPU, ...], msgspec.Meta(max_length=abi.MOST_GPUS)]
    is_active: bool = False


class _Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    is_switch: bool
    uuid: Text
    pci: Text
    ports: Annotated[tuple[Id, ...], msgspec.Meta(max_length=abi.MOST_PORTS)]


class _Unsupported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id
    modules: Annotated[tuple[Module, ...], msgspec.Meta(max_length=abi.MOST_GPUS)]


_Token = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f-]{1,64}\Z")]


class _Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    start: _Token
    machine: _Token | None = None
    version: Annotated[str, msgspec.Meta(pattern=rf"\A{VERSION}\Z")] | None = None


class _Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Text
    reason: Text
    message: Words
    hint: Words = ""
    code: int = 0


_MOST_FAILED: Final = abi.MOST_GPUS + abi.MOST_SWITCHES


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a call brought: what was asked for, or an error."""

    partitions: Annotated[tuple[_Partition, ...], msgspec.Meta(max_length=abi.MOST_PARTITIONS)] = ()
    failed: Annotated[tuple[_Failed, ...], msgspec.Meta(max_length=_MOST_FAILED)] = ()
    unsupported: Annotated[tuple[_Unsupported, ...], msgspec.Meta(max_length=abi.MOST_PARTITIONS)] = ()
    error: _Error | None = None
    identity: _Identity | None = None


_request, _answer = msgspec.json.Decoder(Request), msgspec.json.Decoder(Answer)
_KINDS: Final = {
    kind.__name__: kind
    for kind in (errors.Unavailable, errors.Conflict, errors.DeviceFault, errors.Invalid, errors.Denied)
}
"""Errors that an agent may report as such; any other one is its own fault, a ProtocolError."""


def encode(value: Request | Answer) -> bytes:
    """Return a call or an answer as JSON."""
    return msgspec.json.encode(value)


def parse_request(body: bytes) -> Request:
    """Return a call. Raises: ProtocolError (`FabricCallInvalid`)."""
    try:
        return _request.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"a call is not one of the seven: {error}"
        raise errors.ProtocolError(message, reason="FabricCallInvalid") from error


def parse_answer(body: bytes) -> Answer:
    """Return an answer that is no error. Raises: ProtocolError: it is no answer; the error that it reports."""
    try:
        found = _answer.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the agent's answer is not valid: {error}"
        raise errors.ProtocolError(message, reason="FabricAnswerInvalid") from error
    if found.error is not None:
        raise _error(found.error)
    return found


def _error(found: _Error) -> errors.FairleadError:
    if found.code in result.RESULTS:
        return result.error_of(found.code, found.message.partition(": ")[0])
    reason = found.reason if found.reason.isascii() and found.reason.isalnum() else "FabricAgentOdd"
    kind = _KINDS.get(found.kind, errors.ProtocolError)
    return kind(found.message, reason=reason, hint=found.hint or None)


def error_answer(error: errors.FairleadError) -> Answer:
    """Return an error as an answer."""
    code = error.context.get("code")
    return Answer(
        error=_Error(
            kind=type(error).__name__,
            reason=error.reason[: abi.UUID_BYTES],
            message=error.message,
            hint=error.hint or "",
            code=code if isinstance(code, int) else 0,
        )
    )


def answer_of(
    *,
    partitions: tuple[Partition, ...] = (),
    failed: tuple[FailedDevice, ...] = (),
    unsupported: tuple[UnsupportedPartition, ...] = (),
    identity: ManagerIdentity | None = None,
) -> Answer:
    """Return what a call brought as an answer."""
    return Answer(
        partitions=tuple(_said(one) for one in partitions),
        failed=tuple(_Failed(one.is_switch, one.uuid, one.pci, one.ports) for one in failed),
        unsupported=tuple(_Unsupported(one.id, one.modules) for one in unsupported),
        identity=_Identity(identity.start, identity.machine or None, identity.version or None) if identity else None,
    )


def _said(one: Partition) -> _Partition:
    gpus = (_GPU(gpu.module, gpu.uuid, gpu.pci, gpu.links, gpu.most_links, gpu.link_mbps) for gpu in one.gpus)
    return _Partition(one.id, tuple(gpus), one.is_active)


def identity_of(answer: Answer) -> ManagerIdentity:
    """Return which start of the Manager an answer names. Raises: ProtocolError: it names none."""
    found = answer.identity
    if found is None:
        message = "the agent's answer does not say which start of the Manager it is"
        raise errors.ProtocolError(message, reason="FabricAnswerInvalid")
    return ManagerIdentity(start=found.start, machine=found.machine or "", version=found.version or "")


def partitions_of(answer: Answer) -> tuple[Partition, ...]:
    """Return an answer's partitions. Raises: ProtocolError: they contradict each other."""
    return listing.checked(
        [
            Partition(id=one.id, gpus=tuple(_heard(gpu) for gpu in one.gpus), is_active=one.is_active)
            for one in answer.partitions
        ]
    )


def _heard(gpu: _GPU) -> FabricGPU:
    return FabricGPU(
        module=gpu.module,
        uuid=gpu.uuid,
        pci=gpu.pci,
        links=gpu.links,
        most_links=gpu.most_links,
        link_mbps=gpu.link_mbps,
    )


def failed_of(answer: Answer) -> tuple[FailedDevice, ...]:
    """Return an answer's devices with failed links."""
    return tuple(
        FailedDevice(is_switch=one.is_switch, uuid=one.uuid, pci=one.pci, ports=one.ports) for one in answer.failed
    )


def unsupported_of(answer: Answer) -> tuple[UnsupportedPartition, ...]:
    """Return an answer's partitions that cannot be offered."""
    return tuple(UnsupportedPartition(id=one.id, modules=one.modules) for one in answer.unsupported)
