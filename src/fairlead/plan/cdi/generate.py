"""Makes the CDI specs of a machine's GPUs from inventory and driver files. Pure.

One device a GPU and one a MIG device, under each of the names that were chosen; a MIG device brings the parent's node
and its two capability nodes; `all` brings everything. A GPU in MIG mode is not a device. What every container needs
(control nodes, libraries, tools, our hook where it is asked for) is said once, at spec level; `driverprofile` decides
how much of it is shown. Specs stay at CDI 0.5.0 unless the profile asks for supplementary groups, since older engines
drop newer specs without a word.

Variants let a container choose its part of the driver by name, without any hook or shim: one more class a capability,
`nvidia.com/gpu-compute`, `nvidia.com/gpu-utility`, …, each with the same devices and only that part's files. Asking for
a device in several classes gives the union, which is what NVIDIA_DRIVER_CAPABILITIES means.
Source: NVIDIA driver documentation, "Device files" and "MIG capabilities"; `docs/design/cdi.md`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model import cdikind
from fairlead.model.driver import SHARED_NODES, DeviceNode, DriverFiles
from fairlead.model.gpu import GPU, Inventory, MIGDevice, Vendor
from fairlead.plan.cdi import capability, driverprofile, hookargs
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

ALL: Final = "all"
NONE: Final = "none"
"""As the only entry of `Recipe.devices`: one device that brings the driver and no GPU."""
VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
"""An engine's own NVIDIA runtime hook must not add GPUs of its own accord."""
STRATEGIES: Final[Mapping[str, Callable[[GPU, MIGDevice | None], str]]] = {
    "uuid": lambda gpu, mig: mig.uuid if mig else gpu.uuid,
    "index": lambda gpu, mig: f"{gpu.index}:{mig.index}" if mig else str(gpu.index),
    "type-index": lambda gpu, mig: f"mig{gpu.index}:{mig.index}" if mig else f"gpu{gpu.index}",
}
"""How a device is named; several at once give one device several names."""


@frozen
class Hook:
    """Our createContainer hook, for images whose linker does not look where the driver lies."""

    path: str
    """Of `fairlead-hook` on the host."""
    ldconfig: str = ""
    without: frozenset[str] = frozenset()
    """Members of `hookargs.STEPS` that are left out."""


@frozen
class Recipe:
    """What specs are to look like."""

    profile: driverprofile.Profile = driverprofile.TENANT
    strategies: tuple[str, ...] = ("uuid", "index")
    """Keys of `STRATEGIES`, in the order of the names."""
    devices: frozenset[str] = frozenset()
    """Only these, by a name of any strategy; empty, or with `ALL` in it: every one; `NONE` alone: none."""
    hook: Hook | None = None
    has_variants: bool = False
    """Whether to make a class for each capability, too."""
    kinds: Mapping[str, str] = field(default_factory=lambda: cdikind.GPUS)
    """Kinds of GPUs by value of `Vendor`: the vendors' own, or those of allocations."""
    vendor: str = ""
    """The vendor part of every kind; empty: the usual one."""
    cls: str = ""
    """The class part of every kind; empty: the usual one."""

    def kind(self, usual: str) -> str:
        """Return the kind of a spec that is usually called so."""
        vendor, _, cls = usual.partition("/")
        return f"{self.vendor or vendor}/{self.cls or cls}"

    def gpu_kind(self, vendor: Vendor) -> str:
        """Return the kind of a vendor's GPUs."""
        return self.kind(self.kinds[vendor.value])


@frozen
class Generation:
    """What one run produced."""

    specs: tuple[cdi.Spec, ...] = ()
    """One a vendor that has devices, in the vendors' order, each followed by its variants."""
    problems: tuple[str, ...] = ()
    """Devices left out and why, one line each."""


def generate(
    inventory: Inventory,
    files: Sequence[DriverFiles],
    *,
    recipe: Recipe | None = None,
    vendors: Iterable[Vendor] = tuple(Vendor),
) -> Generation:
    """Return specs for all vendors found. No devices is not an error: then there are no specs.

    Args:   files: one value a vendor, as `Silicon.scan_driver` gives them.   recipe: None: the default one.
    Raises: NotFound: the recipe names a device that is not there.
    """
    chosen = recipe or Recipe()
    wanted = tuple(vendors)
    _assert_known(inventory, chosen.devices, wanted)
    specs: list[cdi.Spec] = []
    problems = [f"GPU {gpu.index} is left out: {gpu.message}" for gpu in inventory.unreadable]
    for vendor in wanted:
        builder = _builder(inventory, files, vendor, chosen)
        kind = chosen.gpu_kind(vendor)
        spec = builder.spec(kind)
        problems.extend(builder.problems)
        if spec is not None:
            specs.append(spec)
            specs += _variants(inventory, files, vendor, chosen) if chosen.has_variants else []
    return Generation(specs=tuple(specs), problems=tuple(problems))


def variant_kind(kind: str, part: str) -> str:
    """Return the class in which a kind's devices bring one capability's files only."""
    return f"{kind}-{part}"


def variant_names(kind: str, devices: Iterable[str], capabilities: str) -> tuple[str, ...]:
    """Return the qualified names that stand for some devices with a value of NVIDIA_DRIVER_CAPABILITIES.

    Raises: Invalid: the value names a capability that is none.
    """
    parts, wrong = capability.parse_capabilities(capabilities)
    if wrong:
        message = (
            f"{capability.VARIABLE}={capabilities}: {', '.join(wrong)} is none (known: {', '.join(capability.KNOWN)})"
        )
        raise errors.Invalid(message, reason="CapabilityUnknown")
    chosen = [part for part in capability.KNOWN if part in parts]
    return tuple(f"{variant_kind(kind, part)}={device}" for device in devices for part in chosen)


def _variants(inventory: Inventory, files: Sequence[DriverFiles], vendor: Vendor, recipe: Recipe) -> Iterator[cdi.Spec]:
    """Yield the variants of one vendor's spec; vendors whose user space is the container's own have none."""
    if vendor is not Vendor.NVIDIA:
        return
    for part in capability.KNOWN:
        narrow = dataclasses.replace(recipe.profile, capabilities=frozenset({part}))
        builder = _builder(inventory, files, vendor, dataclasses.replace(recipe, profile=narrow))
        spec = builder.spec(variant_kind(recipe.gpu_kind(vendor), part))
        if spec is not None:
            yield spec


def _assert_known(inventory: Inventory, wanted: frozenset[str], vendors: Sequence[Vendor]) -> None:
    known = {name for gpu in inventory.gpus if gpu.vendor in vendors for names in _listed(gpu) for name in names}
    missing = wanted - known - {ALL, NONE}
    if missing:
        message = f"no device is called {', '.join(sorted(missing))}"
        raise errors.NotFound(message, reason="DeviceUnknown", hint=f"there are: {', '.join(sorted(known)) or 'none'}")


def _listed(gpu: GPU) -> Iterator[tuple[str, ...]]:
    """Yield all names of each device of a GPU, in every strategy."""
    for mig in gpu.mig_devices if gpu.mig_enabled else (None,):
        yield tuple(name(gpu, mig) for name in STRATEGIES.values())


def _builder(inventory: Inventory, files: Sequence[DriverFiles], vendor: Vendor, recipe: Recipe) -> _Builder:
    empty = DriverFiles(vendor=vendor, version=None)
    driver = next((item for item in files if item.vendor is vendor), empty)
    gpus = tuple(gpu for gpu in inventory.gpus if gpu.vendor is vendor)
    return _Builder(gpus=gpus, driver=driver, recipe=recipe)


class _Builder:
    def __init__(self, *, gpus: Sequence[GPU], driver: DriverFiles, recipe: Recipe) -> None:
        self.problems: list[str] = []
        self._gpus = gpus
        self._driver = driver
        self._recipe = recipe
        self._profile = recipe.profile
        self._nodes = {node.path: node for node in driver.nodes}
        self._mig_minors = dict(driver.mig_minors)

    def spec(self, kind: str) -> cdi.Spec | None:
        devices = list(self._devices())
        if not devices:
            return None
        if self._profile.has_all and not {NONE, ALL} & {device.name for device in devices}:
            devices.append(cdi.Device(name=ALL, edits=merge(device.edits for device in devices)))
        spec = cdi.Spec(cdi_version="", kind=kind, devices=tuple(devices), edits=self._common())
        return emit.normal_form(spec)

    def _devices(self) -> Iterator[cdi.Device]:
        if self._recipe.devices == {NONE}:
            if self._gpus:
                yield cdi.Device(name=NONE, edits=cdi.ContainerEdits(env=(VOID,)))
            return
        for gpu in self._gpus:
            if gpu.mig_enabled:
                for mig in gpu.mig_devices:
                    yield from self._named(gpu, mig, self._mig_paths(gpu, mig))
            else:
                yield from self._named(gpu, None, self._gpu_paths(gpu))

    def _named(self, gpu: GPU, mig: MIGDevice | None, paths: Sequence[str]) -> Iterator[cdi.Device]:
        """Yield one device under each of its names; nothing, and a problem, where a node is missing."""
        wanted = self._recipe.devices
        if wanted and ALL not in wanted and wanted.isdisjoint(name(gpu, mig) for name in STRATEGIES.values()):
            return
        names = dict.fromkeys(STRATEGIES[strategy](gpu, mig) for strategy in self._recipe.strategies)
        missing = [path for path in paths if path not in self._nodes]
        if missing or not paths:
            name = next(iter(names))
            self.problems.append(f"device {name} is left out: {', '.join(missing) or 'its nodes'} not found")
            return
        twins = _by_path(gpu, paths) if self._profile.is_graphics else None
        edits = driverprofile.show_nodes((self._nodes[path] for path in paths), self._profile, paths=twins)
        for each in names:
            yield cdi.Device(name=each, edits=edits)

    def _gpu_paths(self, gpu: GPU) -> tuple[str, ...]:
        if gpu.vendor is not Vendor.NVIDIA:
            return gpu.device_nodes
        shown = gpu.device_nodes or (f"/dev/nvidia{gpu.minor}",)
        return tuple(path for path in shown if self._profile.is_graphics or not path.startswith("/dev/dri/"))

    def _mig_paths(self, gpu: GPU, mig: MIGDevice) -> tuple[str, ...]:
        parent = f"gpu{gpu.minor}/gi{mig.gpu_instance}"
        keys = (f"{parent}/access", f"{parent}/ci{mig.compute_instance}/access")
        caps = [self._mig_minors.get(key) for key in keys]
        named = [
            f"/dev/nvidia-caps/nvidia-cap{key if minor is None else minor}"
            for key, minor in zip(keys, caps, strict=True)
        ]
        # An instance whose profile has graphics engines can draw; the others cannot, and their GPU's DRM is not theirs.
        drm = [path for path in gpu.device_nodes if path.startswith("/dev/dri/")] if "gfx" in mig.profile else []
        return (f"/dev/nvidia{gpu.minor}", *named, *(drm if self._profile.is_graphics else ()))

    def _common(self) -> cdi.ContainerEdits:
        vendor = self._driver.vendor
        parts = self._profile.capabilities
        wanted = [self._nodes[p] for p in SHARED_NODES[vendor] if p in self._nodes and capability.is_wanted(p, parts)]
        return common_edits(wanted, self._driver, self._recipe)


def common_edits(nodes: Iterable[DeviceNode], driver: DriverFiles, recipe: Recipe) -> cdi.ContainerEdits:
    """Return what every container of a spec gets: shared nodes, the driver's user space, our hook if there is one."""
    mounts = driverprofile.show_files(driver.files, recipe.profile)
    hooks = (hook_entry(recipe.hook, mounts, driver.version or ""),) if recipe.hook and mounts else ()
    env = (VOID,) if driver.vendor is Vendor.NVIDIA else ()
    return dataclasses.replace(driverprofile.show_nodes(nodes, recipe.profile), env=env, mounts=mounts, hooks=hooks)


def hook_entry(hook: Hook, mounts: Iterable[cdi.Mount], version: str) -> cdi.Hook:
    """Return our hook as a spec names it."""
    places = [mount.container_path for mount in mounts]
    args = hookargs.arguments(places, driver=version, ldconfig=hook.ldconfig, without=hook.without)
    return cdi.Hook(
        hook_name="createContainer",
        path=hook.path,
        args=tuple(args),
        env=hookargs.ENV,
        timeout=hookargs.TIMEOUT_S,
    )


def _by_path(gpu: GPU, paths: Iterable[str]) -> dict[str, str]:
    """Return udev's second name of each DRM node, by PCI address; in the container it is a node as well."""
    if gpu.uuid.startswith(f"{gpu.pci_bus_id}."):
        return {}  # a partition beyond a board's first, whose nodes udev does not name by the board's address
    ends = {"card": "card", "renderD": "render"}
    return {
        path: f"/dev/dri/by-path/pci-{gpu.pci_bus_id}-{end}"
        for path in paths
        for start, end in ends.items()
        if path.startswith(f"/dev/dri/{start}")
    }


def merge(parts: Iterable[cdi.ContainerEdits]) -> cdi.ContainerEdits:
    """Return edits that do what all of these do, each entry once, in first-seen order; the last intelRdt stands."""
    found = tuple(parts)
    return cdi.ContainerEdits(
        env=tuple(dict.fromkeys(item for part in found for item in part.env)),
        device_nodes=tuple(dict.fromkeys(item for part in found for item in part.device_nodes)),
        net_devices=tuple(dict.fromkeys(item for part in found for item in part.net_devices)),
        hooks=tuple(dict.fromkeys(item for part in found for item in part.hooks)),
        mounts=tuple(dict.fromkeys(item for part in found for item in part.mounts)),
        intel_rdt=next((part.intel_rdt for part in reversed(found) if part.intel_rdt is not None), None),
        additional_gids=tuple(dict.fromkeys(item for part in found for item in part.additional_gids)),
    )
