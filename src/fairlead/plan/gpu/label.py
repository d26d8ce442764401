"""Makes the labels by which pods choose a GPU node: the names of NVIDIA's feature discovery, and ours. Pure.

Every value is one that Kubernetes takes (63 characters, letters and digits at both ends); a label whose value is not
known is left out, never empty. A node with several models shows the commonest one (the larger memory, then the name,
decides a tie), so that the labels do not change from scan to scan; how many there are of each model is in a label
of its own. Lost GPUs count: labels say what a node has, health is said elsewhere.
Source: NVIDIA GPU feature discovery, label names and values; `docs/design/publications.md`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from fairlead.wire.kubernetes import names, quantity
from fairlead.wire.kubernetes.gpudevice import GPUDeviceSpec

MANAGER: Final = "fairlead-agent"
"""Field manager of what agents apply to Nodes and GPUDevices."""
NVIDIA: Final = "nvidia.com/"
SIMULATED: Final = "fairlead.dev/simulated"
GVISOR: Final = "fairlead.dev/gvisor"
"""`true` where any GPU of the node is simulated."""
MODEL_COUNT: Final = "fairlead.dev/gpu-count."
"""Followed by a product; the value is how many the node has of it."""

ALIASES: Final[Mapping[str, str]] = {
    "gpu-count": "gpu.count",
    "gpu-memory": "gpu.memory",
    "gpu-generation": "gpu.family",
}
"""Names without a domain that manifests of tutorials select by, and the labels whose values they have."""

_MIB: Final = 1 << 20
_LONGEST: Final = 63
_SHARED: Final = "-SHARED"
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9\-_. ]")

# Family by major compute capability, and by major and minor where a major has two.
_FAMILIES: Final[Mapping[int, str]] = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    7: "volta",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
_MODES: Final[Mapping[str, str]] = {"0x030000": "graphics", "0x030200": "compute"}
"""Use of a GPU by its PCI class."""
_FAMILIES_OF_MINORS: Final[Mapping[tuple[int, int], str]] = {(7, 5): "turing", (8, 9): "ada-lovelace"}


def plan_labels(specs: Iterable[GPUDeviceSpec], *, machine: str) -> dict[str, str]:
    """Return the labels of a node with these GPUs; none for a node without any.

    Args: machine: product name of the machine; empty: not known.
    """
    every = tuple(specs)
    labels = {SIMULATED: "true"} if any(spec.simulated for spec in every) else {}
    nvidia = tuple(spec for spec in every if spec.vendor == "nvidia")
    if not nvidia:
        return labels
    counts = Counter(spec.product for spec in nvidia)
    shown = min(nvidia, key=lambda spec: (-counts[spec.product], -_bytes(spec), spec.product, spec.index))
    values = {**_common(nvidia, machine), **_model(shown), **_driver(shown), **_place(nvidia)}
    labels |= {f"{NVIDIA}{name}": text for name, value in values.items() if (text := label_value(value))}
    for product, count in counts.items():
        if name := label_value(product, longest=_LONGEST - len("gpu-count.")):
            labels[f"{MODEL_COUNT}{name}"] = str(count)
    return labels


def plan_extras(labels: Mapping[str, str], *, started: int | None, has_aliases: bool) -> dict[str, str]:
    """Return what goes beside a node's labels: when they began, and the names that tutorials know them by.

    Args: started: Unix seconds; None: no such label.
    """
    if f"{NVIDIA}gpu.present" not in labels:
        return {}
    found = {f"{NVIDIA}gfd.timestamp": str(started)} if started is not None else {}
    if has_aliases:
        pairs = ((alias, labels.get(f"{NVIDIA}{name}", "")) for alias, name in ALIASES.items())
        found |= {alias: value for alias, value in pairs if value}
    return found


def plan_gvisor(specs: Iterable[GPUDeviceSpec], drivers: Collection[str] | None) -> dict[str, str]:
    """Return the label by which pods for gVisor find the nodes that they can run on.

    Args: drivers: releases of NVIDIA's driver that the node's gVisor knows; None: it has none, or was not looked at.
    """
    if drivers is None:
        return {}
    needed = {spec.driver_version for spec in specs if spec.vendor == "nvidia"}
    return {GVISOR: "true" if needed <= set(drivers) else "false"}


def plan_fabric(manager: str) -> dict[str, str]:
    """Return the label by which schedulers hold machines' drivers against a node's Fabric Manager.

    Args: manager: its version; empty: there is none, or nothing says it.
    """
    return {names.FABRIC_MANAGER: value} if (value := label_value(manager)) else {}


def may_be_ours(labels: Mapping[str, str]) -> bool:
    """Return whether a node's labels hold any that an agent sets; another's feature discovery sets some of them too."""
    return any(name.startswith((NVIDIA, SIMULATED, MODEL_COUNT, GVISOR, names.FABRIC_MANAGER)) for name in labels)


def _common(nvidia: tuple[GPUDeviceSpec, ...], machine: str) -> dict[str, str]:
    is_capable = any(spec.mig_mode in {"Enabled", "Disabled"} for spec in nvidia)
    return {
        "gpu.present": "true",
        "gpu.count": str(len(nvidia)),
        "gpu.machine": machine,
        "mig.capable": str(is_capable).lower(),
        "mig.strategy": "none",
        "mps.capable": str(any(spec.sharing == "mps" for spec in nvidia)).lower(),  # as NVIDIA's: MPS is in use
    }


def _model(shown: GPUDeviceSpec) -> dict[str, str]:
    major, _, minor = shown.compute_capability.partition(".")
    is_shared = bool(shown.sharing) and not shown.resource.endswith(".shared")
    return {
        # A selector must distinguish a whole GPU from a share of one where the resource's name does not.
        "gpu.product": label_value(shown.product, longest=_LONGEST - len(_SHARED)) + _SHARED * is_shared,
        "gpu.replicas": str(shown.replicas or 1),
        "gpu.sharing-strategy": shown.sharing or "none",
        "gpu.memory": str(_bytes(shown) // _MIB or ""),
        "gpu.family": family(shown.compute_capability),
        "gpu.compute.major": major,
        "gpu.compute.minor": minor,
    }


def _driver(shown: GPUDeviceSpec) -> dict[str, str]:
    """Return the versions under today's names and under the older ones, which manifests still select by."""
    major, _, rest = shown.driver_version.partition(".")
    minor, _, revision = rest.partition(".")
    cuda_major, _, cuda_minor = shown.cuda_version.partition(".")
    return {
        "cuda.driver-version.full": shown.driver_version,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.runtime-version.full": shown.cuda_version,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }


def _place(nvidia: tuple[GPUDeviceSpec, ...]) -> dict[str, str]:
    """Return what GPUs are for, the NVLink clique that all of them are in, and whether a hypervisor lends them."""
    first, *_ = sorted(nvidia, key=lambda spec: spec.index)
    cliques = {spec.clique for spec in nvidia if spec.clique}
    lent = [spec for spec in nvidia if spec.virtual == "true"]
    host = lent[-1] if lent else None
    is_known = bool(lent) or all(spec.virtual for spec in nvidia)
    return {
        "gpu.mode": _MODES.get(first.pci_class, "unknown"),
        "gpu.clique": next(iter(cliques)) if len(cliques) == 1 else "",
        "vgpu.present": str(host is not None).lower() if is_known else "",
        "vgpu.host-driver-version": host.host_driver_version if host is not None else "",
        "vgpu.host-driver-branch": host.host_driver_branch if host is not None else "",
    }


def _bytes(spec: GPUDeviceSpec) -> int:
    return math.floor(quantity.parse_quantity(spec.memory or "0"))


def family(compute_capability: str) -> str:
    """Return the architecture's name for a compute capability such as `9.0`; `undefined` for one not in the table."""
    major, _, minor = compute_capability.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        return ""
    pair = int(major), int(minor)
    return _FAMILIES_OF_MINORS.get(pair) or _FAMILIES.get(pair[0], "undefined")


def label_value(text: str, *, longest: int = _LONGEST) -> str:
    """Return the text as a label's value: foreign characters left out, blanks as dashes, cut; may be empty."""
    plain = "-".join(_FOREIGN.sub("", text).split())
    return plain[:longest].strip("-_.")
