"""Declares requests and answers of attaching a GPU and taking one away, without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which device, and whose."""

    gpu: Annotated[str, msgspec.Meta(description="index, UUID or PCI address of a GPU, or any device's id")]
    resource: Annotated[str, msgspec.Meta(description="extended resource; empty: that of whole GPUs")] = ""
    container: Annotated[str, msgspec.Meta(description="which container of the group; empty: the first")] = ""
    force: Annotated[bool, msgspec.Meta(description="detach: end processes that have it open")] = False


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One device node in the container."""

    path: str
    done: Annotated[str, msgspec.Meta(description="made, kept, replaced, removed or absent")]


class EndedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that had the device open and was ended."""

    pid: Annotated[int, msgspec.Meta(description="on the host")]
    name: str


class DeviceChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, and what the kernel says now."""

    container: str
    resource: str
    device: str
    rules: Annotated[tuple[str, ...], msgspec.Meta(description="device rules that were changed")]
    nodes: tuple[NodeChange, ...]
    opens: Annotated[dict[str, str], msgspec.Meta(description="what open() of each node says: OK or an errno")]
    ended: tuple[EndedProcess, ...] = ()
    unread: tuple[str, ...] = ()
