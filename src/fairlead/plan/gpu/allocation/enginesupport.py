"""Lists which releases of which engine inject CDI devices; the others start containers without their devices.

containerd 1.6 is the dangerous one: it takes the request, injects nothing and reports success (measured
with 1.6.20, see docs/design/peers.md). So a node is asked for its engine's release before anything is placed on it.
"""

from __future__ import annotations

import re
from typing import Final

from fairlead import errors

FIRST: Final = {"containerd": (1, 7), "docker": (25, 0), "crio": (1, 23), "podman": (4, 1)}
"""First release that injects CDI devices."""
_NAMES: Final = {"cri-o": "crio"}
_NUMBERS: Final = re.compile(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?")


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return the release in what an engine prints about itself (`containerd … v1.7.35 …`); None: none in it."""
    found = _NUMBERS.search(text)
    return tuple(int(part) for part in found.groups() if part) if found else None


def check_cdi(engine: str, version: tuple[int, ...] | None) -> None:
    """Refuse an engine that would start containers without their devices; an unknown release passes.

    Raises: Unavailable (`CDIUnsupported`).
    """
    first = FIRST[engine]
    if version is None or version >= first:
        return
    number, wanted = ".".join(map(str, version)), ".".join(map(str, first))
    message = f"{engine} {number} does not inject CDI devices: containers would start without them"
    hint = f"install {engine} {wanted} or newer, or let the runtime shim inject: --no-enable-cdi"
    raise errors.Unavailable(message, reason="CDIUnsupported", hint=hint, engine=engine, version=number)


def has_release(runtime: str) -> bool:
    """Return whether an engine in the words of a Node's `containerRuntimeVersion` names an engine and a release."""
    name, mark, rest = runtime.partition("://")
    return bool(name and mark) and parse_version(rest) is not None


def check_node(runtime: str) -> None:
    """Refuse by `status.nodeInfo.containerRuntimeVersion` of a node (`containerd://1.6.36`).

    Raises: Unavailable (`CDIUnsupported`): that engine ignores CDI names. An engine we do not know passes.
    """
    name, _, rest = runtime.partition("://")
    engine = _NAMES.get(name, name)
    if engine in FIRST:
        check_cdi(engine, parse_version(rest))
