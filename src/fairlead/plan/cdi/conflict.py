"""Finds devices that more than one spec file defines, which no engine resolves as the allocation means. Pure.

In one folder two definitions cancel each other; in folders of different priority the higher one counts. Either way a
container does not get what was allocated to it, so a device of ours in either state must not be handed out.
Source: CDI SPEC.md, "Multiple CDI specs"; pkg/cdi of container-device-interface, cache.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead_cdi import directory

REASON: Final = "CDIConflict"
WRITER: Final = "systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service"
"""What stops the vendor's service that writes specs by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two files that define the same devices."""

    path: str
    """The file that is meant to define them: ours, where one of the two is."""
    other: str
    devices: tuple[str, ...]
    """Fully qualified names."""

    @property
    def message(self) -> str:
        """Both files, and what they both define, in a line."""
        more = f" and {len(self.devices) - 1} more" if len(self.devices) > 1 else ""
        return f"{self.devices[0]}{more} is defined in {self.path} and in {self.other}"

    @property
    def remedy(self) -> str:
        """The commands that mend it."""
        return f"`{WRITER}`, where that service wrote it; `mv {self.other} {self.other}.before`"


def find(registry: directory.Registry, ours: Mapping[str, str]) -> tuple[Conflict, ...]:
    """Return which of our devices another file defines too, one value for each pair of files.

    Args: ours: the path of our file by the qualified name of each device.
    """
    pairs: list[tuple[str, str, str]] = []
    for name, path in ours.items():
        resolved = registry.devices.get(name)
        claims = registry.conflicts.get(name, ())
        others = [claim for claim in claims if claim != path]
        if resolved is not None and resolved.file.path != path:
            others = [resolved.file.path]
        elif resolved is not None:
            others = []  # whatever is in a lower folder, ours counts
        pairs += [(path, other, name) for other in others[:1]]
    return _by_pair(pairs)


def find_any(registry: directory.Registry, is_ours: Iterable[str] = ()) -> tuple[Conflict, ...]:
    """Return every two files in which the same devices cancel each other. Args: is_ours: paths that should stay."""
    kept = frozenset(is_ours)
    pairs: list[tuple[str, str, str]] = []
    for name, claims in registry.conflicts.items():
        if name not in registry.devices:
            first, second = sorted(dict.fromkeys(claims), key=lambda path: (path not in kept, path))[:2]
            pairs.append((first, second, name))
    return _by_pair(pairs)


def _by_pair(pairs: Iterable[tuple[str, str, str]]) -> tuple[Conflict, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for path, other, name in pairs:
        found.setdefault((path, other), []).append(name)
    return tuple(Conflict(path=path, other=other, devices=tuple(names)) for (path, other), names in found.items())
