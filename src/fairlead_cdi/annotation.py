"""CDI requests as container annotations: the older road from a device plugin to the engine, still read by containerd.

One key `cdi.k8s.io/PLUGIN_DEVICE` names any number of fully qualified devices, joined by commas without spaces. The
same module checks annotations inside spec files, which the reference library means to check and never does.
Source: CDI pkg/cdi/annotations.go; Kubernetes apimachinery, validation of annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fairlead import errors
from fairlead_cdi import names

PREFIX: Final = "cdi.k8s.io/"
_KEY_LIMIT: Final = 63
_PREFIX_LIMIT: Final = 253
_SIZE_LIMIT_BYTES: Final = 256 * 1024
_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


def emit_key(plugin: str, device_id: str) -> str:
    """Return the annotation key under which one device plugin asks for one device.

    Args:    plugin: name of the plugin, `vendor.class` by custom.   device_id: its own name of the device.
    Raises:  Invalid: either is empty, or the key would break Kubernetes' rules for annotations.
    """
    if not plugin or not device_id:
        raise errors.Invalid("plugin and device id must be given", reason="AnnotationInvalid")
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if len(name) > _KEY_LIMIT or not _KEY.fullmatch(name):
        message = f'annotation name "{name}" is not allowed'
        hint = f"at most {_KEY_LIMIT} letters, digits and _-., first and last alphanumeric"
        raise errors.Invalid(message, reason="AnnotationInvalid", hint=hint)
    return PREFIX + name


def emit_value(devices: Iterable[str]) -> str:
    """Return the annotation value that asks for these devices.

    Raises: Invalid: no device, or one that is not fully qualified.
    """
    wanted = tuple(devices)
    if not wanted:
        raise errors.Invalid("no devices to ask for", reason="AnnotationInvalid")
    for device in wanted:
        names.parse_qualified_name(device)
    return ",".join(wanted)


def update_annotations(
    current: Mapping[str, str], *, plugin: str, device_id: str, devices: Iterable[str]
) -> dict[str, str]:
    """Return a copy of `current` with one more request. Raises: Invalid: a bad part, or the key exists already."""
    key = emit_key(plugin, device_id)
    if key in current:
        message = f'annotation "{key}" is already there'
        raise errors.Invalid(message, reason="AnnotationInvalid", hint="use another device id")
    return {**current, key: emit_value(devices)}


def parse_annotations(given: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the requests out of a container's annotations.

    Returns: the CDI keys, and the devices in the order of the sorted keys (the reference library's is random).
    Raises:  Invalid: one name is not fully qualified; then nothing of the whole set counts.
    """
    keys = tuple(sorted(key for key in given if key.startswith(PREFIX)))
    devices: list[str] = []
    for key in keys:
        for device in given[key].split(","):
            if not names.is_qualified(device):
                message = f'annotation "{key}" asks for "{device}", which is not a fully qualified CDI name'
                raise errors.Invalid(message, reason="AnnotationInvalid", hint="write vendor/class=name")
            devices.append(device)
    return keys, tuple(devices)


def problems(given: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with annotations of a spec or a device by Kubernetes' rules."""
    for key in given:
        prefix, slash, name = key.rpartition("/")
        if slash and (len(prefix) > _PREFIX_LIMIT or not _SUBDOMAIN.fullmatch(prefix)):
            yield f'key "{key:.80}": the part before the slash is not a DNS subdomain'
        if len(name) > _KEY_LIMIT or not _KEY.fullmatch(name):
            yield f'key "{key:.80}": the name is not 1 to {_KEY_LIMIT} letters, digits and _-.'
    size = sum(len(key.encode()) + len(value.encode()) for key, value in given.items())
    if size > _SIZE_LIMIT_BYTES:
        yield f"{size} bytes in all, {_SIZE_LIMIT_BYTES} are allowed"
