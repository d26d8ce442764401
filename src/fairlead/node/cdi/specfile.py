"""Writes and reads one CDI spec file and its stamp, and says what the stamp and the recipe of this machine are.

Synchronous, and without logs: `fairlead cdi generate` writes with it and needs no event loop for that.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors, files, settings
from fairlead.frozen import frozen
from fairlead.model import cdikind
from fairlead.model.driver import DriverFiles, ModeFiles
from fairlead.model.gpu import Inventory, Vendor
from fairlead.plan.cdi import driverprofile, generate, source
from fairlead.silicon import running
from fairlead.wire.cdi import stamp, translate
from fairlead_cdi import emit, parse
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import spec as cdi


@frozen
class Findings:
    """What one reading of the machine found."""

    made: generate.Generation
    stamps: dict[Vendor, stamp.Stamp]
    """Of each vendor's specs."""


MODE: Final = 0o644
"""Permission bits of our files."""


def recipe_of(chosen: settings.NodeSettings) -> generate.Recipe:
    """Return what the settings say about this node's specs."""
    return generate.Recipe(
        profile=driverprofile.PROFILES[chosen.cdi_profile],
        hook=generate.Hook(path=chosen.cdi_hook) if chosen.cdi_hook else None,
        has_variants=chosen.cdi_variants,
    )


def versions_of(drivers: Iterable[DriverFiles]) -> dict[Vendor, str]:
    """Return the versions of the drivers that report one."""
    return {driver.vendor: driver.version for driver in drivers if driver.version}


def allocation_recipe_of(chosen: settings.NodeSettings) -> generate.Recipe:
    """Return what the settings say about the specs of what is allocated: of kinds that only our files have."""
    return dataclasses.replace(recipe_of(chosen), kinds=cdikind.ALLOCATED)


def all_versions(root: Path, drivers: Iterable[DriverFiles]) -> dict[Vendor, str]:
    """Return the drivers' versions; where GPUs were not asked about, those that are loaded."""
    loaded = running.read_running(root).versions
    return {Vendor(vendor): text for vendor, text in loaded.items()} | versions_of(drivers)


def findings(
    inventory: Inventory,
    drivers: Sequence[DriverFiles],
    found: Mapping[str, ModeFiles],
    *,
    modes: Sequence[str],
    recipe: generate.Recipe,
    root: Path,
) -> Findings:
    """Return what specs say of one reading of the machine.

    Args:    found: of each mode that reads files.   modes, recipe: see `plan.cdi.source`.   root: has /proc and /sys.
    Raises:  NotFound: the recipe names an unknown device.
    """
    made = source.describe(inventory, drivers, found, modes=modes, recipe=recipe)
    return Findings(made=made, stamps=stamps_of(inventory, all_versions(root, drivers)))


def without_driver(error: errors.Unavailable) -> Inventory:
    """Return the inventory of a machine whose driver is not loaded, which has no GPUs. Raises: any other error."""
    if error.reason != "DriverNotLoaded":
        raise error
    return Inventory()


def stamps_of(inventory: Inventory, versions: Mapping[Vendor, str]) -> dict[Vendor, stamp.Stamp]:
    """Return what each vendor's specs are made from, but for the boot. Args: versions: of the drivers' files."""
    cuda = {driver.vendor: driver.cuda_version for driver in inventory.drivers}
    return {
        vendor: stamp.Stamp(
            driver=vendor.value,
            version=versions.get(vendor, ""),
            cuda=".".join(map(str, cuda.get(vendor) or ())),
            gpus={
                f"/dev/nvidia{gpu.minor}": (".".join(map(str, gpu.compute_capability or ())), gpu.brand or "")
                for gpu in inventory.gpus
                if gpu.vendor is vendor is Vendor.NVIDIA
            },
        )
        for vendor in Vendor
    }


def stamp_for(kind: str, recipe: generate.Recipe, stamps: Mapping[Vendor, stamp.Stamp], *, boot_id: str) -> stamp.Stamp:
    """Return the stamp of the spec of one kind."""
    return dataclasses.replace(stamps[source.vendor_of(kind, recipe)], boot_id=boot_id)


@translate.cdi_errors
def write_spec(path: Path, spec: cdi.Spec, mark: stamp.Stamp, *, stamping: str) -> bool:
    """Write a spec as JSON with its stamp; False: both were there already.

    Raises: Unavailable: a write is refused.   OSError: what is there cannot be read.
    """
    shown = stamp.annotate(spec, mark) if stamping == "annotations" else spec
    return write_bytes(path, emit.emit_json(shown), mark, stamping=stamping)


def write_bytes(path: Path, data: bytes, mark: stamp.Stamp, *, stamping: str) -> bool:
    """Write the bytes of a spec and, where it belongs beside them, its stamp. False, Raises: as `write_spec`."""
    beside = stamp.beside(path)
    # The stamp first: a crash in between leaves one of other bytes, which readers ignore, and no spec without a stamp.
    wanted = {beside: stamp.emit_stamp(mark, data), path: data}
    if stamping != "file":
        del wanted[beside]
        beside.unlink(missing_ok=True)
    changed = {place: content for place, content in wanted.items() if _read(place) != content}
    for place, content in changed.items():
        files.sweep(place)
        files.write_atomic(place, content, mode=MODE, durable=False)  # a reboot voids it with the rest of /run
    return bool(changed)


def read_stamp(path: Path) -> stamp.Stamp | None:
    """Return the stamp of one of our files, wherever it is; None: no file, no stamp, or no spec of ours."""
    return _read_stamped(path)[1]


def devices_of_boot(path: Path, boot_id: str) -> tuple[str, ...]:
    """Return the qualified names of a spec's devices; none where it is not ours, or its stamp is of another boot."""
    try:
        is_other = is_replaced(path)
    except OSError:
        return ()
    spec, mark = (None, None) if is_other else _read_stamped(path)
    if spec is None or mark is None or not boot_id or mark.boot_id != boot_id:
        return ()
    return tuple(cdikind.qualified(spec.kind, device.name) for device in spec.devices)


def _read_stamped(path: Path) -> tuple[cdi.Spec | None, stamp.Stamp | None]:
    try:
        spec = parse.parse_spec(path.read_bytes())
        return spec, stamp.read(path, spec.annotations)
    except (OSError, cdi_errors.DocumentError):
        return None, None


def remove(path: Path) -> bool:
    """Remove a spec and its stamp; False: there was no spec."""
    stamp.beside(path).unlink(missing_ok=True)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def is_replaced(path: Path) -> bool:
    """Return whether we did not write what is at the path: a link, a pipe, a file of another owner or mode."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (stat.S_ISREG(found.st_mode), stat.S_IMODE(found.st_mode), found.st_uid) != (True, MODE, os.geteuid())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
