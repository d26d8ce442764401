"""Refuses names of containers, networks and images, alike for every engine."""

from __future__ import annotations

import re
from typing import Final

from fairlead import errors
from fairlead.wire.oci import imageref

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")  # the rule of podman and of docker, for networks too


def check_name(name: str) -> None:
    """Refuse a name that engines refuse, or would take for an option. Raises: Invalid (`ContainerNameInvalid`)."""
    if not _NAME.match(name):
        message = f'container name "{name}" is not letters, digits, "_", "." and "-", a letter or digit first'
        raise errors.Invalid(message, reason="ContainerNameInvalid", hint="choose another name")


def check_image(name: str) -> None:
    """Refuse what is not an image reference. Raises: Invalid (`ImageNameInvalid`)."""
    if not imageref.is_reference(name):
        message = f'image "{name}" is not an image reference'
        raise errors.Invalid(message, reason="ImageNameInvalid", hint="write registry/path:tag, in lower case")
