"""Writes this node's CDI specs: before a device is advertised, and removes them on an orderly stop.

`plan.cdi.generate` says what a spec is; this module keeps one file a kind in the folder that engines read, replaced in
one step and only when its content differs. Beside each lies its stamp, unless it is in annotations: which boot and
driver it was made in. Without devices there is no file, and the log says so once. `ensure` returns the names that are
on disk: no other device may be handed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fairlead import errors, settings, telemetry
from fairlead.model import cdikind
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory, Vendor
from fairlead.node.cdi import specfile
from fairlead.plan.cdi import companion, generate, hostpath, source
from fairlead.plan.vfio import slot, slotoffer, switchoffer
from fairlead.wire.cdi import stamp
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

PREFIX = "fairlead-"
"""Sets our files of the vendors' own kinds apart from those that a vendor's toolkit writes."""
SLOTS = f"{PREFIX}slots-"
"""Begins the names of the files of GPUs that are passed through, whose kinds are the names of resources."""


_COMPANIONS = tuple(cdikind.COMPANIONS.values())


class SpecFiles:
    """Our files in one CDI folder."""

    def __init__(
        self,
        folder: Path,
        *,
        recipe: generate.Recipe | None = None,
        kinds: Iterable[str] | None = None,
        boot_id: str = "",
        stamping: str = "file",
        host_mount: Path = Path("/"),
        naming: slot.Naming | None = None,
    ) -> None:
        """Touch nothing yet.

        Args:    recipe: None: the default one.   kinds: whose files are removed when there are no devices of them;
                 None: those of every vendor's GPUs, their variants, and vGPUs.   boot_id: of the running kernel.
                 stamping: one of `stamp.PLACES`.   host_mount: where this process sees the node's root.
                 naming: of GPUs that are passed through; None: there are no files of any.
        """
        self.folder = folder
        self.recipe = recipe or generate.Recipe()
        self.names: frozenset[str] = frozenset()
        """Qualified names of all devices in the files as they are."""
        self.written = 0
        """How many files have been written or removed so far."""
        self._kinds = (
            tuple(kinds)
            if kinds is not None
            else (
                *source.gpu_kinds(self.recipe),
                cdikind.LENT,
                *_COMPANIONS,
            )
        )
        self._boot_id, self._stamping = boot_id, stamping
        self._host_mount, self._naming = host_mount, naming
        self._unledgered = frozenset({*_COMPANIONS, cdikind.SWITCHES if naming is None else naming.switches})
        """Kinds that are always shown: they are not GPUs, so that the ledger has none of them."""
        self._slot_kinds: frozenset[str] = frozenset()
        self._problems: tuple[str, ...] | None = None
        self._wanted: dict[str, tuple[cdi.Spec, stamp.Stamp]] | None = None
        """What the files are to say, by kind; None: nothing was said yet, or the files were removed."""
        self._writing = threading.Lock()
        """Held by whichever thread touches the files: one writes at a time, and none after they were removed."""
        self._own = (*cdikind.ALLOCATED.values(), cdikind.LENT)
        self._shown: frozenset[str] | None = None
        """Qualified names of the devices that the files may show, variants left out; None: every one."""

    @classmethod
    def of_node(cls, chosen: settings.NodeSettings, boot_id: str) -> SpecFiles:
        """Return the files of what the node's device plugins give away. Args: boot_id: of the running kernel."""
        return cls(
            chosen.cdi_folder,
            recipe=specfile.allocation_recipe_of(chosen),
            boot_id=boot_id,
            stamping=chosen.cdi_stamp,
            host_mount=chosen.host_mount,
            naming=slot.naming_of(chosen),
        )

    def path(self, kind: str) -> Path:
        """Return where the spec of a kind is kept."""
        name = emit.file_name(kind)
        if kind in self._slot_kinds:
            return self.folder / f"{SLOTS}{name}"
        return self.folder / (name if kind.startswith((*self._own, *_COMPANIONS)) else f"{PREFIX}{name}")

    async def ensure(self, inventory: Inventory, drivers: Sequence[DriverFiles]) -> frozenset[str]:
        """Make the files say what is there now; idempotent. Returns the qualified names that engines can resolve.

        Made and written in a thread: a spec takes milliseconds of a processor, which no Allocate waits for.
        Raises: Unavailable: the folder refuses a write; what was there stays, and `names` still says what.
        """
        await asyncio.to_thread(self._ensure, inventory, tuple(drivers))
        return self.names

    def _ensure(self, inventory: Inventory, drivers: Sequence[DriverFiles]) -> None:
        seen = [hostpath.seen_by_host(driver, self._host_mount) for driver in drivers]
        made = generate.generate(inventory, seen, recipe=self.recipe)
        lent = source.lent_spec(seen, self.recipe)
        more = (*([] if lent is None else [lent]), *companion.specs(seen, self.recipe), *self._slot_specs(seen))
        made = dataclasses.replace(made, specs=(*made.specs, *more)) if more else made
        self._keep(made, specfile.stamps_of(inventory, specfile.versions_of(drivers)))

    def _slot_specs(self, drivers: Iterable[DriverFiles]) -> tuple[cdi.Spec, ...]:
        if self._naming is None:
            return ()
        known = tuple(drivers)
        found = self._naming.slots(
            (gpu for driver in known for gpu in driver.passthrough),
            (one for driver in known for one in driver.partitions),
        )
        switches = (one for driver in known for one in driver.switches)
        by_iommufd = self._naming.with_iommufd
        specs = (
            *slotoffer.plan_specs(found, self.recipe.profile),
            *switchoffer.plan_spec(
                switches, self.recipe.profile, resource=self._naming.switches, with_iommufd=by_iommufd
            ),
        )
        self._slot_kinds = frozenset(spec.kind for spec in specs)
        return specs

    def _slot_files(self) -> Iterator[Path]:
        """Yield the files of slots in the folder, an earlier agent's too: their kinds depend on its settings."""
        yield from self.folder.glob(f"{SLOTS}*.json")

    async def keep(self, made: generate.Generation, stamps: Mapping[Vendor, stamp.Stamp]) -> frozenset[str]:
        """Make the files say what was generated; see `ensure`. Args: stamps: as `stamps_of` gives them."""
        await asyncio.to_thread(self._keep, made, stamps)
        return self.names

    def hide(self) -> None:
        """Show no device but those that `show` names, from the first file on.

        Until it is first called, those stay that our files of this boot show: pods held them when the last agent ended,
        however it did, and a container that is started meanwhile needs its spec.
        """
        places = (*map(self.path, self._own), *self._slot_files())
        self._shown = frozenset(name for place in places for name in specfile.devices_of_boot(place, self._boot_id))

    async def show(self, names: frozenset[str]) -> None:
        """Make the files show these devices, by qualified name, and no others; a kind without any has no file.

        Raises: Unavailable: the folder refuses; then the next call tries again.
        """
        if names != self._shown:
            await asyncio.to_thread(self._show, names)

    async def remove(self) -> None:
        """Remove our files; a folder that refuses is logged."""
        await asyncio.to_thread(self._remove)

    async def restore(self) -> tuple[str, ...]:
        """Write again what another process removed or changed. Returns the paths that were not as they should be.

        Raises: Unavailable: the folder refuses a write.
        """
        return await asyncio.to_thread(self._restore)

    def devices(self) -> dict[str, str]:
        """Return the path of our file by the qualified name of each device in it."""
        wanted = self._wanted or {}
        return {
            cdikind.qualified(kind, device.name): str(self.path(kind))
            for kind, (spec, _) in wanted.items()
            for device in spec.devices
        }

    def stale(self, boot_id: str, versions: Mapping[str, str]) -> tuple[str, ...]:
        """Return which of our files on disk are of another boot or driver, one line each."""
        places = (*map(self.path, self._kinds), *self._slot_files())
        found = ((path, specfile.read_stamp(path)) for path in places)
        return tuple(
            f"{path} {why}" for path, mark in found if mark is not None for why in mark.staleness(boot_id, versions)
        )

    def _show(self, names: frozenset[str]) -> None:
        with self._writing, self._told_as_unavailable():
            before, self._shown = self._shown, names
            try:
                for path in self._write(self._wanted or {}):
                    telemetry.log.debug("cdi spec written", path=path)
            except BaseException:
                self._shown = before
                raise

    def _visible(self, spec: cdi.Spec) -> cdi.Spec | None:
        """Return what of a spec may be shown; None: nothing."""
        if self._shown is None or spec.kind in self._unledgered:
            return spec
        base = next((own for own in self._own if spec.kind.startswith(own)), spec.kind)
        devices = tuple(one for one in spec.devices if cdikind.qualified(base, one.name) in self._shown)
        return emit.normal_form(dataclasses.replace(spec, devices=devices, cdi_version="")) if devices else None

    def _keep(self, made: generate.Generation, stamps: Mapping[Vendor, stamp.Stamp]) -> None:
        wanted = {
            spec.kind: (spec, specfile.stamp_for(spec.kind, self.recipe, stamps, boot_id=self._boot_id))
            for spec in made.specs
        }
        with self._writing, self._told_as_unavailable():
            for path in self._write(wanted):
                telemetry.log.info("cdi spec written", path=path)
            kept = set(map(self.path, wanted))
            for place in (*map(self.path, self._kinds), *self._slot_files()):
                if place not in kept and specfile.remove(place):
                    self.written += 1
                    telemetry.log.info("cdi spec removed", path=str(place))
            self._wanted = wanted
            self.names = frozenset(self.devices())
        self._tell(made.problems if made.specs else (*made.problems, "no devices: no CDI spec is written"))

    def _restore(self) -> tuple[str, ...]:
        with self._writing, self._told_as_unavailable():
            wanted = self._wanted or {}
            for kind in wanted:
                for path in (self.path(kind), stamp.beside(self.path(kind))):
                    if specfile.is_replaced(path):
                        path.unlink()
            return tuple(self._write(wanted))

    def _write(self, wanted: Mapping[str, tuple[cdi.Spec, stamp.Stamp]]) -> Iterator[str]:
        """Write the files that differ; yields their paths. Raises: OSError, Unavailable."""
        if wanted:
            self.folder.mkdir(parents=True, exist_ok=True)
        for kind, (spec, mark) in wanted.items():
            path, shown = self.path(kind), self._visible(spec)
            if shown is None:
                changed = specfile.remove(path)
            else:
                changed = specfile.write_spec(path, shown, mark, stamping=self._stamping)
            if changed:
                self.written += 1
                yield str(path)

    @contextlib.contextmanager
    def _told_as_unavailable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"cannot keep CDI specs in {self.folder}: {error.strerror}"
            raise errors.Unavailable(message, reason="CDIFolderFailed", path=str(self.folder)) from error

    def _tell(self, problems: tuple[str, ...]) -> None:
        if problems != self._problems:
            for problem in problems:
                telemetry.log.warning("cdi spec incomplete", error=problem)
        self._problems = problems

    def _remove(self) -> None:
        with self._writing:
            self._wanted, self.names = None, frozenset()
            for path in (*map(self.path, self._kinds), *self._slot_files()):
                try:
                    specfile.remove(path)
                except OSError as error:
                    telemetry.log.warning("cdi spec not removed", path=str(path), error=str(error))
