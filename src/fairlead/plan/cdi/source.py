"""Lists the generator's modes as one table, and makes the spec of a mode without GPUs. Pure.

A mode is a row: its kind, what finds it, and how much its containers are shown. Every mode has a class of its own, so
that specs of several modes lie in one folder without their devices `all` cancelling each other. The three ways of
finding NVIDIA's GPUs (`nvml`, `wsl`, `csv`) share `nvidia.com/gpu`: no machine has two of them, and a user who asks for
a GPU must not have to know which it is.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model import cdikind
from fairlead.model.cdikind import KINDS
from fairlead.model.driver import DriverFiles, ModeDevice, ModeFiles
from fairlead.model.gpu import Inventory, Vendor
from fairlead.plan.cdi import capability, driverprofile, generate
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

AUTO: Final = "auto"


@frozen
class Mode:
    """One row."""

    kind: str
    help: str
    vendor: Vendor | None = None
    """For modes that are GPUs as the silicon port finds them; None: `silicon.nvidia.files.modefiles` finds it."""
    maker: Vendor = Vendor.NVIDIA
    """For the others: whose devices they are."""
    is_whole: bool = False
    """Containers get all of it whatever the profile says: tools of the machine's owner."""
    has_driver: bool = False
    """The mode brings a driver's user space, so that capabilities, variants and our hook mean something."""


MODES: Final[Mapping[str, Mode]] = {
    "nvml": Mode(kind=KINDS["nvml"], help="NVIDIA GPUs and MIG devices", vendor=Vendor.NVIDIA, has_driver=True),
    "amd": Mode(kind=KINDS["amd"], help="AMD GPUs", vendor=Vendor.AMD),
    "intel": Mode(kind=KINDS["intel"], help="Intel GPUs", vendor=Vendor.INTEL),
    "wsl": Mode(kind=KINDS["wsl"], help="NVIDIA GPUs under Windows", has_driver=True),
    "csv": Mode(kind=KINDS["csv"], help="Tegra's integrated GPU, by its lists", has_driver=True),
    "management": Mode(
        kind=KINDS["management"], help="every node, for tools of the owner", is_whole=True, has_driver=True
    ),
    "imex": Mode(kind=KINDS["imex"], help="IMEX channels"),
    "gds": Mode(kind=KINDS["gds"], help="GPUDirect Storage"),
    "mofed": Mode(kind=KINDS["mofed"], help="RDMA devices for GPUDirect"),
    "gdrcopy": Mode(kind=KINDS["gdrcopy"], help="GDRCopy"),
    "nvswitch": Mode(kind=KINDS["nvswitch"], help="NVSwitches"),
    "vgpu": Mode(kind=KINDS["vgpu"], help="vGPUs that this machine lends to guests"),
    "vfio": Mode(kind=KINDS["vfio"], help="NVIDIA GPUs bound to vfio-pci"),
    "vfio-amd": Mode(kind=KINDS["vfio-amd"], help="AMD GPUs bound to vfio-pci", maker=Vendor.AMD),
    "vfio-intel": Mode(kind=KINDS["vfio-intel"], help="Intel GPUs bound to vfio-pci", maker=Vendor.INTEL),
}


def mode_spec(name: str, files: ModeFiles, recipe: generate.Recipe) -> cdi.Spec | None:
    """Return the spec of a mode that is not a GPU of the silicon port; None: it has no devices, write nothing.

    Args: name: a key of `MODES` whose row has no vendor.
    """
    mode = MODES[name]
    profile = (
        dataclasses.replace(driverprofile.FULL, has_all=recipe.profile.has_all) if mode.is_whole else recipe.profile
    )
    devices = [
        cdi.Device(name=each, edits=driverprofile.show_nodes(device.nodes, profile))
        for device in files.devices
        for each in device.names
        if not recipe.devices or recipe.devices & {each, generate.ALL}
    ]
    whole = [driverprofile.show_nodes(device.nodes, profile) for device in files.devices]
    # Without single devices `all` is the only name there is.
    if whole and (profile.has_all or not any(device.names for device in files.devices)):
        devices.append(cdi.Device(name=generate.ALL, edits=generate.merge(whole)))
    if not devices:
        return None
    chosen = dataclasses.replace(recipe, profile=profile, hook=recipe.hook if mode.has_driver else None)
    found = DriverFiles(vendor=mode.maker, version=files.version, files=files.files)
    common = generate.common_edits(files.shared, found, chosen)
    spec = cdi.Spec(cdi_version="", kind=recipe.kind(mode.kind), devices=tuple(devices), edits=common)
    return emit.normal_form(spec)


def lent_spec(drivers: Iterable[DriverFiles], recipe: generate.Recipe) -> cdi.Spec | None:
    """Return the spec of the vGPUs that the agent hands out; None: there are none."""
    found = [one for driver in drivers for one in driver.vgpus if one.nodes and not one.problem]
    own, _, cls = cdikind.LENT.partition("/")
    shared = {node.path: node for driver in drivers for node in driver.vfio_nodes}
    files = ModeFiles(
        devices=tuple(ModeDevice(names=(one.id,), nodes=one.nodes) for one in found),
        shared=tuple(shared.values()) if found else (),
    )
    profile = dataclasses.replace(recipe.profile, has_all=False)
    return mode_spec("vgpu", files, dataclasses.replace(recipe, profile=profile, vendor=own, cls=cls))


def describe(
    inventory: Inventory,
    drivers: Sequence[DriverFiles],
    found: Mapping[str, ModeFiles],
    *,
    modes: Sequence[str],
    recipe: generate.Recipe,
) -> generate.Generation:
    """Return the specs of all modes.

    Args:    found: what was found of each mode whose row has no vendor.   modes: keys of `MODES`.
    Raises:  NotFound: the recipe names an unknown device.   Invalid (`KindAmbiguous`): two specs are of one kind.
    """
    vendors = tuple(row.vendor for name in modes if (row := MODES[name]).vendor)
    made = generate.generate(inventory, drivers, recipe=recipe, vendors=vendors)
    specs, problems = list(made.specs), list(made.problems)
    for name, files in found.items():
        problems += [f"{name}: {problem}" for problem in files.problems]
        spec = mode_spec(name, files, recipe)
        specs += [] if spec is None else [spec]
    _assert_distinct(specs)
    return generate.Generation(specs=tuple(specs), problems=tuple(problems))


def _assert_distinct(specs: Iterable[cdi.Spec]) -> None:
    """Refuse two specs of one kind: their devices would cancel each other. Raises: Invalid."""
    counts = collections.Counter(spec.kind for spec in specs)
    twice = [kind for kind, count in counts.items() if count > 1]
    if twice:
        message = f"{counts[twice[0]]} specs would be of kind {twice[0]}"
        raise errors.Invalid(message, reason="KindAmbiguous", hint="choose one mode for a vendor and class of your own")


def file_modes(modes: Iterable[str]) -> tuple[str, ...]:
    """Return the modes that are read from files alone; the others need GPUs of the silicon port."""
    return tuple(name for name in modes if MODES[name].vendor is None)


def chosen(given: Iterable[str], platform: str) -> tuple[str, ...]:
    """Return the modes that were asked for, `AUTO` taken apart, each once.

    Args: given: keys of `MODES`, or `AUTO`; none: `AUTO`.   platform: which mode speaks for NVIDIA's GPUs here.
    """
    auto = (platform, "amd", "intel")
    parts = [auto if name == AUTO else (name,) for name in tuple(given) or (AUTO,)]
    return tuple(dict.fromkeys(name for part in parts for name in part))


def kinds(names: Iterable[str], recipe: generate.Recipe) -> tuple[str, ...]:
    """Return every kind that these modes and their variants may have under this recipe, each once."""
    found = dict.fromkeys(_kind(MODES[name], recipe) for name in names)
    variants = [generate.variant_kind(kind, part) for kind in found for part in capability.KNOWN]
    return (*found, *(kind for kind in variants if kind not in found))


def _kind(mode: Mode, recipe: generate.Recipe) -> str:
    return recipe.gpu_kind(mode.vendor) if mode.vendor else recipe.kind(mode.kind)


def gpu_kinds(recipe: generate.Recipe) -> tuple[str, ...]:
    """Return the kinds of every vendor's GPUs and their variants."""
    return kinds((name for name, mode in MODES.items() if mode.vendor), recipe)


def vendor_of(kind: str, recipe: generate.Recipe) -> Vendor:
    """Return whose driver a spec of a kind depends on."""
    rows = (mode for mode in MODES.values() if kind.startswith(_kind(mode, recipe)))
    return next((mode.vendor or mode.maker for mode in rows), Vendor.NVIDIA)
