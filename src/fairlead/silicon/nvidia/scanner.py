"""Scans NVIDIA GPUs through NVML: which calls to make, and what their answers mean; who waits for them is the caller's.

A scan is a generator. It yields driver calls that may run side by side, each in a thread of `callthread`, and is sent
their answers; it returns the inventory. So one text serves the silicon port, which awaits the calls, and a command that
scans once without an event loop (`run`). The calls block; the generator itself never does.

One scan reads the library's own facts in one thread and every GPU in its own: a GPU that is lost or hangs becomes an
`UnreadableGPU`, named from an earlier scan, and the others are read as ever. The library is opened when it is there and
opened again after the driver as a whole has failed, so a driver that appears later is found.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.gpu import Driver, Inventory, LinkKind, UnreadableGPU, Vendor
from fairlead.silicon import knowngpus
from fairlead.silicon.nvidia import binding, callthread, gpureader, topology
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.pci import pci

VENDOR_ID: Final = 0x10DE
T = TypeVar("T")
Steps = Generator[Mapping[str, Callable[[], object]], Mapping[str, object], T]
"""Yields calls by target, is sent each one's result or error by target, returns what was found."""


@frozen
class Library:
    """NVML with what its start reported."""

    binding: binding.Binding
    driver: Driver
    count: int
    """GPUs that it enumerates."""


class Scanner:
    """NVML's library and what earlier scans have learnt; one scan at a time."""

    def __init__(
        self,
        root: Path,
        driver_root: Path,
        *,
        call_timeout_s: float,
        known: knowngpus.KnownGPUs,
        library: object | Path | None = None,
        is_simulated: bool = False,
        search: driver.Search = driver.EVERYWHERE_USUAL,
    ) -> None:
        """Touch nothing yet. Args: as `NVMLSilicon`.   known: notes which GPUs answered and which did not."""
        self._root, self._driver_root, self._search = root, driver_root, search
        self._call_timeout_s, self._library, self._is_simulated = call_timeout_s, library, is_simulated
        self._known = known
        self._binding: binding.Binding | None = None
        self.is_released = False
        """While set, the library stays closed: the driver resets no GPU under an open client."""
        self._opening = threading.Lock()
        self._levels: dict[tuple[str, str], LinkKind] = {}

    def scan(self) -> Steps[Inventory]:
        """Read everything now.

        Returns: an empty inventory where there is neither library nor kernel driver.
        Raises:  Unavailable: a driver is installed but its library refuses to start.
        """
        try:
            found = yield from self.start()
        except errors.Unavailable as error:
            if error.reason == "DriverLibraryMissing" and not self._has_kernel_driver():
                return Inventory()
            raise
        nvml = found.binding
        answers = yield {
            f"gpu{index}": functools.partial(gpureader.read, nvml, index, self._root) for index in range(found.count)
        }
        readings, unreadable = self._sort(list(answers.values()), nvml)
        yield from self._learn_levels(nvml, readings)
        return Inventory(
            gpus=tuple(reading.gpu for reading in readings),
            unreadable=(*unreadable, *self._unlisted(readings, unreadable, found.count)),
            links=topology.links(readings, self._levels, self._root),
            drivers=(found.driver,),
            is_simulated=self._is_simulated,
        )

    def run(self, threads: callthread.CallThreads) -> Inventory:
        """Scan in this thread, with the same limit for each call. Raises: as `scan`."""
        scan = self.scan()
        try:
            calls = next(scan)
            while True:
                calls = scan.send(threads.run_all_here(calls, timeout_s=self._call_timeout_s))
        except StopIteration as end:
            found: Inventory = end.value
            return found

    def open(self) -> binding.Binding:
        """Open the library if it is not open; blocking. Raises: Unavailable."""
        with self._opening:
            if self.is_released:
                hint = "it goes on after the reset"
                raise errors.Unavailable("a GPU is being reset", reason="DriverReleased", hint=hint)
            if self._binding is None:
                library = self._library or driver.find_nvml(self._root, self._driver_root, self._search)
                self._binding = binding.Binding(library)
            return self._binding

    def release(self) -> binding.Binding | None:
        """Forget the library and return it, to be shut down by the caller; None: it is not open."""
        opened, self._binding = self._binding, None
        return opened

    def start(self, *, target: str = "library") -> Steps[Library]:
        """Open the library and read its own facts: the driver and the number of GPUs. Raises: Unavailable."""
        answer = (yield {target: self._read_library})[target]
        if isinstance(answer, Library):
            return answer
        if isinstance(answer, errors.DeviceFault):
            message = f"nvml does not return from its start within {self._call_timeout_s} s"
            raise errors.Unavailable(message, reason="DriverHangs", hint="see dmesg for NVRM messages") from answer
        raise _failure(answer)

    def _read_library(self) -> Library:
        nvml = self.open()
        try:
            version, count = nvml.nvml.nvmlSystemGetDriverVersion(), nvml.nvml.nvmlDeviceGetCount()
        except nvml.error as error:
            self._binding = None  # the next scan opens the library anew: the driver may have been reloaded
            nvml.shut_down()
            raise binding.start_error(error) from error
        cuda = nvml.reading("nvmlSystemGetCudaDriverVersion")
        pair = (cuda // 1000, cuda % 1000 // 10) if cuda else None
        found = Driver(vendor=Vendor.NVIDIA, version=version, cuda_version=pair)
        return Library(binding=nvml, driver=found, count=count)

    def _has_kernel_driver(self) -> bool:
        return (self._root / "proc/driver/nvidia").exists()

    def _sort(
        self, answers: Sequence[object], nvml: binding.Binding
    ) -> tuple[list[gpureader.Reading], list[UnreadableGPU]]:
        """Part the readings from the failures, both in index order, and note who answered."""
        readings, unreadable = [], []
        for index, answer in enumerate(answers):
            if isinstance(answer, gpureader.Reading):
                readings.append(answer)
                seen = knowngpus.Seen(uuid=answer.gpu.uuid, pci_bus_id=answer.gpu.pci_bus_id)
                self._known.answered(index, seen)
            elif isinstance(answer, (nvml.error, errors.DeviceFault)):
                unreadable.append(self._unreadable(index, binding.gpu_error(answer)))
            else:
                raise _failure(answer)
        return readings, unreadable

    def _unreadable(self, index: int, fault: errors.DeviceFault) -> UnreadableGPU:
        self._known.silent(index, fault.message)
        seen = self._known.find(index)
        return UnreadableGPU(
            index=index,
            pci_bus_id=seen.pci_bus_id if seen else None,
            uuid=seen.uuid if seen else None,
            reason=fault.reason,
            message=errors.sentence(fault),
        )

    def _unlisted(
        self, readings: list[gpureader.Reading], unreadable: list[UnreadableGPU], count: int
    ) -> list[UnreadableGPU]:
        """GPUs bound to the driver that NVML does not list at all.

        Empty where an unreadable GPU has no known address: it could be the one.
        """
        if any(item.pci_bus_id is None for item in unreadable):
            return []
        listed = {reading.gpu.pci_bus_id for reading in readings} | {item.pci_bus_id for item in unreadable}
        # Virtual functions are bound to the driver too, which lends them: NVML lists their board alone.
        boards = (a for a in pci.list_displays(self._root, VENDOR_ID) if not pci.is_virtual_function(self._root, a))
        bound = [a for a in boards if pci.driver_of(self._root, a) == "nvidia"]
        return [
            UnreadableGPU(
                index=count + place,
                pci_bus_id=address,
                uuid=None,
                reason="Unreadable",
                message=f"bound to the driver at {address} but not listed by nvml (see dmesg for NVRM messages)",
            )
            for place, address in enumerate(address for address in bound if address not in listed)
        ]

    def _learn_levels(self, nvml: binding.Binding, readings: list[gpureader.Reading]) -> Steps[None]:
        """Ask for the PCIe levels of pairs not seen before; what is not answered is asked again at the next scan."""
        unknown = topology.missing(readings, self._levels)
        answers = yield {
            f"topology{place}": functools.partial(topology.read_levels, nvml, readings[place], others)
            for place, others in unknown.items()
        }
        for place, answer in zip(unknown, answers.values(), strict=True):
            if isinstance(answer, dict):
                one = readings[place].gpu.pci_bus_id
                self._levels |= {(one, other): level for other, level in answer.items()}


def _failure(answer: object) -> Exception:
    """Return the error that a call ended with; anything else in its place is a bug of ours."""
    return answer if isinstance(answer, Exception) else TypeError(f"a driver call returned {answer!r}")
