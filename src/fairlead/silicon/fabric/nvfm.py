"""Speaks to a Fabric Manager through NVIDIA's library, `libnvfm.so.1`.

The library is loaded from this program's own statement of its interface (`abi`). It is the only way to the Manager: the
protocol between the two is not published. It is not documented as safe to enter twice and its calls block, so that one
thread has each connection (`connection`). What comes back is checked before it is believed: counts, ids, texts.
"""

from __future__ import annotations

import ctypes
import secrets
import struct
from collections.abc import Callable, Collection
from typing import Any, Final

from fairlead import errors
from fairlead.model.fabric import FabricGPU, FailedDevice, ManagerIdentity, Partition, UnsupportedPartition
from fairlead.silicon import listener
from fairlead.silicon.fabric import abi, listing, result
from fairlead.silicon.fabric.address import Address, Kind

_TYPES: Final = {Kind.INET: abi.INET, Kind.UNIX: abi.UNIX, Kind.VSOCK: abi.VSOCK}
_MISSING: Final = "install nvidia-fabricmanager-dev in the Manager's version, or name the library by fabric.library"
_HEAD: Final = struct.Struct("=III")
_GPU: Final = struct.Struct(f"=I{abi.UUID_BYTES}s{abi.PCI_BYTES}sIII")
"""A partition's fields before its GPUs, and one of these, as `abi` has them: a list is read at once, in a third of the
time that ctypes takes to make an object of each GPU."""
_PARTITION_BYTES: Final = ctypes.sizeof(abi.PartitionInfo)


class NVFM:
    """One connection through the library; calls come from one thread at a time."""

    def __init__(self, library: str, address: Address, *, timeout_s: float) -> None:
        """Load the library and connect.

        Args:   library: a name that the loader finds, or a path.   timeout_s: the library's own limit for connecting.
        Raises: Unavailable: no library, half of one, no Manager; ProtocolError: of a version that is not known.
        """
        self._calls = _load(library)
        self._check(self._calls["fmLibInit"](), f"{library} was not initialised")
        try:
            self._handle = self._connect(address, timeout_s)
        except errors.FairleadError:
            self._calls["fmLibShutdown"]()
            raise
        self._identity = ManagerIdentity(start=_start_of(address) or secrets.token_hex(8))

    def _connect(self, address: Address, timeout_s: float) -> ctypes.c_void_p:
        code, handle = self._try_connect(abi.ConnectParamsV2, address, timeout_s)
        self.api_version = 2
        if code == result.VERSION_MISMATCH and address.kind is not Kind.VSOCK:
            code, handle = self._try_connect(abi.ConnectParamsV1, address, timeout_s)
            self.api_version = 1
        elif code == result.VERSION_MISMATCH:
            message = f"the library cannot reach {address}: it is of a version without vsock"
            raise errors.ProtocolError(
                message, reason="FabricNoVsock", hint="use the Manager's unix socket, or a newer one"
            )
        self._check(code, f"no connection to {address}")
        if not handle.value:
            raise errors.ProtocolError("the library connected and returned no handle", reason="FabricLibraryOdd")
        return handle

    def _try_connect(
        self, kind: type[ctypes.Structure], address: Address, timeout_s: float
    ) -> tuple[int, ctypes.c_void_p]:
        params: Any = kind(version=abi.version_word(kind), timeout_ms=max(1, int(timeout_s * 1000)))
        params.address = address.text.encode(errors="surrogateescape")
        params.is_unix_socket = int(address.kind is Kind.UNIX)
        if kind is abi.ConnectParamsV2:
            params.address_type = _TYPES[address.kind]
        handle = ctypes.c_void_p()
        return self._calls["fmConnect"](ctypes.byref(params), ctypes.byref(handle)), handle

    def _check(self, code: int, what: str) -> None:
        if code:
            raise result.error_of(code, what)

    def _fetch(self, function: str, kind: type[ctypes.Structure], what: str) -> Any:
        filled: Any = kind()
        filled.version = abi.version_word(kind)
        self._check(self._calls[function](self._handle, ctypes.byref(filled)), what)
        return filled

    def identify(self) -> ManagerIdentity:
        """Return which start of the Manager was connected to, as this machine's kernel tells it, not the library.

        Of one behind vsock, or that cannot be seen from here, each connection counts as a start.
        """
        return self._identity

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return the fabric's partitions. Raises: ProtocolError: the list contradicts itself."""
        found = self._fetch("fmGetSupportedFabricPartitions", abi.PartitionList, "partitions were not listed")
        return read_partitions(found)

    def activate(self, partition: int) -> None:
        """Activate a partition."""
        code = self._calls["fmActivateFabricPartition"](self._handle, _id(partition))
        self._settle(code, partition, f"partition {partition} was not activated", is_active=True)

    def deactivate(self, partition: int) -> None:
        """Deactivate a partition."""
        code = self._calls["fmDeactivateFabricPartition"](self._handle, _id(partition))
        self._settle(code, partition, f"partition {partition} was not deactivated", is_active=False)

    def _settle(self, code: int, partition: int, what: str, *, is_active: bool) -> None:
        """Raise what a code says, unless the partition turns out to be as it was asked to be."""
        known = result.RESULTS.get(code)
        if known is not None and known.act is result.Act.LOOK:
            found = next((one for one in self.list_partitions() if one.id == partition), None)
            if found is not None and found.is_active is is_active:
                return
        self._check(code, what)

    def set_active(self, partitions: Collection[int]) -> None:
        """Say which partitions were active before the Manager started again."""
        ids = sorted({_id(one) for one in partitions})
        if len(ids) > abi.MOST_PARTITIONS:
            raise errors.Invalid(f"{len(ids)} partitions are more than a fabric has", reason="FabricPartitionUnknown")
        params = abi.ActivatedList(version=abi.version_word(abi.ActivatedList), count=len(ids))
        params.ids[: len(ids)] = ids
        code = self._calls["fmSetActivatedFabricPartitions"](self._handle, ctypes.byref(params))
        self._check(code, "the list of active partitions was not taken")

    def list_failed(self) -> tuple[FailedDevice, ...]:
        """Return devices whose links failed."""
        found = self._fetch("fmGetNvlinkFailedDevices", abi.FailedDevices, "failed links were not listed")
        listing.check_count("GPUs with failed links", found.gpu_count, abi.MOST_GPUS)
        listing.check_count("switches with failed links", found.switch_count, abi.MOST_SWITCHES)
        return tuple(
            _failed(items[at], is_switch=is_switch)
            for items, count, is_switch in (
                (found.gpus, found.gpu_count, False),
                (found.switches, found.switch_count, True),
            )
            for at in range(count)
        )

    def list_unsupported(self) -> tuple[UnsupportedPartition, ...]:
        """Return partitions that cannot be offered."""
        what = "partitions that cannot be offered were not listed"
        found = self._fetch("fmGetUnsupportedFabricPartitions", abi.UnsupportedList, what)
        listing.check_count("unsupported partitions", found.count, abi.MOST_PARTITIONS)
        listed = list[UnsupportedPartition]()
        for one in found.partitions[: found.count]:
            listing.check_count("GPUs of a partition", one.gpu_count, abi.MOST_GPUS)
            listed.append(UnsupportedPartition(id=one.id, modules=tuple(one.physical_ids[: one.gpu_count])))
        return tuple(listed)

    def close(self) -> None:
        """Disconnect, once; what the library says to that changes nothing."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle.value:
            self._calls["fmDisconnect"](handle)
            self._calls["fmLibShutdown"]()


def read_partitions(found: Any) -> tuple[Partition, ...]:
    """Return the partitions of a filled `abi.PartitionList`. Raises: ProtocolError: the list contradicts itself."""
    listing.check_count("partitions", found.count, abi.MOST_PARTITIONS)
    raw = memoryview(found).cast("B")[type(found).partitions.offset :]
    return listing.checked([_partition(raw[at * _PARTITION_BYTES :]) for at in range(found.count)])


def _start_of(address: Address) -> str:
    """Return which start of the Manager listens at an address; empty: that cannot be told from here."""
    if address.kind is Kind.UNIX:
        return listener.find_start(path=address.text)
    if address.kind is Kind.INET:
        host, port = address.host_port
        return listener.find_start(host=host, port=port)
    return ""


def _load(library: str) -> dict[str, Callable[..., int]]:
    try:
        loaded = ctypes.CDLL(library)
    except (OSError, ValueError) as error:
        message = f"the Fabric Manager's library cannot be loaded: {error}"
        raise errors.Unavailable(message, reason="FabricLibraryMissing", hint=_MISSING) from error
    calls = dict[str, Callable[..., int]]()
    for name, arguments in abi.FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            message = f"{library} has no function {name}"
            raise errors.Unavailable(message, reason="FabricLibraryIncomplete", hint=_MISSING) from error
        function.argtypes, function.restype = arguments, ctypes.c_int
        calls[name] = function
    return calls


def _id(partition: int) -> int:
    if not 0 <= partition < 2**32:
        raise errors.Invalid(f"{partition} is no partition's id", reason="FabricPartitionUnknown")
    return partition


def _partition(raw: memoryview) -> Partition:
    number, is_active, count = _HEAD.unpack_from(raw)
    listing.check_count(f"GPUs in partition {number}", count, abi.MOST_GPUS)
    gpus = raw[_HEAD.size : _HEAD.size + count * _GPU.size]
    return Partition(
        id=number, gpus=tuple(_gpu(*values) for values in _GPU.iter_unpack(gpus)), is_active=bool(is_active)
    )


def _gpu(module: int, uuid: bytes, pci: bytes, links: int, most_links: int, link_mbps: int) -> FabricGPU:
    return FabricGPU(
        module=module,
        uuid=text_of(uuid.partition(b"\0")[0]),
        pci=text_of(pci.partition(b"\0")[0]),
        links=links,
        most_links=most_links,
        link_mbps=link_mbps,
    )


def _failed(info: Any, *, is_switch: bool) -> FailedDevice:
    listing.check_count("ports of a device", info.port_count, abi.MOST_PORTS)
    ports = tuple(info.ports[: info.port_count])
    return FailedDevice(is_switch=is_switch, uuid=text_of(info.uuid), pci=text_of(info.pci), ports=ports)


def text_of(raw: bytes) -> str:
    """Return a text of the Manager's; a text that is not printable ASCII is none."""
    text = raw.decode("ascii", "replace") if raw else ""
    return text if text.isascii() and text.isprintable() else ""
