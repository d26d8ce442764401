"""Versions of the CDI specification: which are known, what each one added, and the lowest one a spec needs.

`REQUIREMENTS` is the whole knowledge, newest first: a spec needs the first version whose predicate it meets, else
0.3.0. An engine drops a spec newer than its own library without a word, so writers emit the lowest version.
Source: CDI specs-go/version.go, spec 1.1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fairlead_cdi import spec as cdi

CURRENT: Final = "1.1.0"
LOWEST: Final = "0.3.0"
"""Older versions are known by name and refused."""
UNIVERSAL: Final = "0.5.0"
"""The newest version that every packaged engine with CDI reads (podman 4.3.1 of Debian 12 is the lowest)."""
KNOWN: Final = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


def rank(version: str) -> int:
    """Return the position of a version in time, a leading `v` ignored; -1 where it is not a version of CDI."""
    plain = version.removeprefix("v")
    return KNOWN.index(plain) if plain in KNOWN else -1


def minimum_version(spec: cdi.Spec) -> str:
    """Return the lowest version whose readers understand everything this spec uses."""
    return next((version for version, is_needed in REQUIREMENTS if is_needed(spec)), LOWEST)


def _all_edits(spec: cdi.Spec) -> Iterator[cdi.ContainerEdits]:
    yield spec.edits
    yield from (device.edits for device in spec.devices)


def _needs_1_1_0(spec: cdi.Spec) -> bool:
    return any(
        edits.net_devices
        or (edits.intel_rdt is not None and (edits.intel_rdt.schemata is not None or edits.intel_rdt.enable_monitoring))
        for edits in _all_edits(spec)
    )


def _needs_0_7_0(spec: cdi.Spec) -> bool:
    return any(edits.intel_rdt is not None or edits.additional_gids for edits in _all_edits(spec))


def _needs_0_6_0(spec: cdi.Spec) -> bool:
    is_annotated = spec.annotations or any(device.annotations for device in spec.devices)
    return bool(is_annotated) or "." in spec.kind.partition("/")[2]


def _needs_0_5_0(spec: cdi.Spec) -> bool:
    digit_first = any("0" <= device.name[:1] <= "9" for device in spec.devices)
    return digit_first or any(node.host_path for edits in _all_edits(spec) for node in edits.device_nodes)


def _needs_0_4_0(spec: cdi.Spec) -> bool:
    return any(mount.type for edits in _all_edits(spec) for mount in edits.mounts)


REQUIREMENTS: Final[tuple[tuple[str, Callable[[cdi.Spec], bool]], ...]] = (
    ("1.1.0", _needs_1_1_0),
    ("0.7.0", _needs_0_7_0),
    ("0.6.0", _needs_0_6_0),
    ("0.5.0", _needs_0_5_0),
    ("0.4.0", _needs_0_4_0),
)
