"""Writes and reads CDI requests as container annotations, by which a device plugin asks an engine for devices.

One key `cdi.k8s.io/PLUGIN_DEVICE` names any number of fully qualified devices, joined by commas without spaces.
containerd still reads these annotations; newer engines have a field for CDI names. `problems` checks annotations inside
spec files, which the Go library means to check and never does.
Source: CDI pkg/cdi/annotations.go; Kubernetes apimachinery, validation of annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fairlead_cdi import errors, names

PREFIX: Final = "cdi.k8s.io/"
_KEY_LIMIT: Final = 63
_PREFIX_LIMIT: Final = 253
_SIZE_LIMIT_BYTES: Final = 256 * 1024
_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


def emit_key(plugin: str, device_id: str) -> str:
    """Return the annotation key under which one device plugin asks for one device.

    Args:    plugin: name of the plugin, `vendor.class` by custom.   device_id: the plugin's name of the device.
    Raises:  InvalidRequest: either is empty, or the key would break Kubernetes' rules for annotations.
    """
    if not plugin or not device_id:
        raise errors.InvalidRequest("plugin and device id must be given", reason="AnnotationInvalid")
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if len(name) > _KEY_LIMIT or not _KEY.fullmatch(name):
        message = f"annotation name {names.quoted(name)} is not allowed"
        hint = f"at most {_KEY_LIMIT} letters, digits and _-., first and last alphanumeric"
        raise errors.InvalidRequest(message, reason="AnnotationInvalid", hint=hint)
    return PREFIX + name


def emit_value(devices: Iterable[str]) -> str:
    """Return the annotation value that asks for these devices.

    Raises: InvalidRequest: no device, or one that is not fully qualified.   WrongType: a single text.
    """
    errors.refuse_text(devices, "the devices")
    wanted = tuple(devices)
    if not wanted:
        raise errors.InvalidRequest("no devices to ask for", reason="AnnotationInvalid")
    for device in wanted:
        names.parse_qualified_name(device)
    return ",".join(wanted)


def update_annotations(
    current: Mapping[str, str], *, plugin: str, device_id: str, devices: Iterable[str]
) -> dict[str, str]:
    """Return a copy of `current` with one more request.

    Raises: InvalidRequest, WrongType: as `emit_key` and `emit_value`, or the key is there already.
    """
    key = emit_key(plugin, device_id)
    if key in current:
        message = f"annotation {names.quoted(key)} is already there"
        raise errors.InvalidRequest(message, reason="AnnotationInvalid", hint="use another device id")
    return {**current, key: emit_value(devices)}


def parse_annotations(given: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the requests out of a container's annotations.

    Returns: the CDI keys, and the devices in the order of the sorted keys (the Go library's order is random).
    Raises:  InvalidRequest: one name is not fully qualified; then the whole set is refused.
    """
    keys = tuple(sorted(key for key in given if key.startswith(PREFIX)))
    devices: list[str] = []
    for key in keys:
        for device in given[key].split(","):
            if not names.is_qualified(device):
                asked = f"annotation {names.quoted(key)} asks for {names.quoted(device)}"
                message = f"{asked}, which is not a fully qualified CDI name"
                raise errors.InvalidRequest(message, reason="AnnotationInvalid", hint="write vendor/class=name")
            devices.append(device)
    return keys, tuple(devices)


def problems(given: Mapping[str, str]) -> Iterator[str]:
    """Yield each break of Kubernetes' rules in the annotations of a spec or a device, as text."""
    for key in given:
        shown = names.quoted(key[:80])
        prefix, slash, name = key.rpartition("/")
        if slash and (len(prefix) > _PREFIX_LIMIT or not _SUBDOMAIN.fullmatch(prefix)):
            yield f"key {shown}: the part before the slash is not a DNS subdomain"
        if len(name) > _KEY_LIMIT or not _KEY.fullmatch(name):
            yield f"key {shown}: the name is not 1 to {_KEY_LIMIT} letters, digits and _-."
    size = sum(len(text.encode(errors="surrogatepass")) for pair in given.items() for text in pair)
    if size > _SIZE_LIMIT_BYTES:
        yield f"{size} bytes in all, {_SIZE_LIMIT_BYTES} are allowed"
