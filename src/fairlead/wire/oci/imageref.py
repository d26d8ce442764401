"""Parses image references: one strict grammar for every request that names an image.

A reference is `[registry[:port]/]path[:tag][@algorithm:hex]`. What does not parse is refused before any program sees
it, so that no name can be an option, a transport (`docker-archive:/etc/x`) or a path of the host.
Source: distribution/reference, `ReferenceRegexp` (behaviour); the kubelet refuses the same names (`InvalidImageName`).
"""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 255 + 1 + 128 + 1 + 200
"""Name, tag and digest; asked first, so that no pattern below works on more."""
_LONGEST_NAME: Final = 255
_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)"
    r"(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
_TRANSPORTS: Final = (
    "atomic:",
    "containers-storage:",
    "dir:",
    "docker-archive:",
    "docker-daemon:",
    "oci:",
    "oci-archive:",
    "ostree:",
    "sif:",
    "tarball:",
)
"""What podman takes for a place on this machine though it parses: `dir:x` is the folder x. Those images have another
name, `docker.io/library/dir:x`. `docker:dind` is an image, since that transport wants `//`.
Source: containers-transports(5).
"""


def is_reference(text: str) -> bool:
    """Return whether the text is an image reference, to every engine."""
    if text.startswith(_TRANSPORTS):
        return False
    found = _REFERENCE.fullmatch(text) if len(text) <= _LONGEST else None
    return found is not None and len(found["name"]) <= _LONGEST_NAME
