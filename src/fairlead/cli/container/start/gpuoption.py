"""Reads docker's notation of `--gpus`: comma-separated fields, of which a count and capabilities are carried out.

Source: docker/cli opts/gpus.go (GpuOpts.Set); moby daemon/nvidia_linux.go, which makes NVIDIA_DRIVER_CAPABILITIES of
the capabilities.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors

VARIABLE: Final = "NVIDIA_DRIVER_CAPABILITIES"
"""`capability.VARIABLE`, whose tables no run needs."""
_FIELDS: Final = ("driver", "count", "device", "capabilities", "options")
_CAPABILITIES: Final = ("compute", "compat32", "display", "graphics", "ngx", "utility", "video")
_IMPLIED: Final = frozenset({"gpu", "nvidia"})
"""Capabilities that every request of docker's has, by which it finds the driver."""
_DRIVERS: Final = frozenset({"", "nvidia", "cdi"})
_EVERY: Final = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerGPUs:
    """A value of `--gpus` in docker's notation."""

    count: str
    """`all`, or a number as it was written."""
    capabilities: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Indices or UUIDs that are meant; none: any."""


def parse(text: str) -> DockerGPUs | None:
    """Return a value as docker reads it; None: it is not in docker's notation.

    Raises: Invalid (`GPUsByName`): GPUs are asked for as CDI names; Invalid (`GPUsInvalid`): what docker refuses too,
            or a field that is not offered.
    """
    try:
        words = next(csv.reader([text.strip("'")]), [])
    except csv.Error as error:
        raise _invalid(errors.readable(text), f"it cannot be read: {error}", "-g 1, or -g all") from error
    if not any(word.partition("=")[0] in _FIELDS for word in words):
        return None
    given, names = _fields(text, words)
    if names and any(name == _EVERY or "=" in name for name in names):
        raise _by_name(text, names)
    if names and "count" in given:
        raise _invalid(text, "count= and device= are two ways to say how many", "leave count= out")
    if given.get("driver", "") not in _DRIVERS:
        raise _invalid(text, f'there is no driver "{given["driver"]}"', "leave driver= out")
    if "options" in given:
        raise _invalid(text, "options= is not offered", "leave options= out")
    count = str(len(dict.fromkeys(names))) if names else given.get("count", "1")
    if count != _EVERY and not (count.isascii() and count.isdecimal()):
        raise _invalid(text, f'"{count}" is not a number of GPUs', "-g 1, or -g all")
    capabilities = _capabilities(text, given.get("capabilities", ""))
    return DockerGPUs(count=count, capabilities=capabilities, names=tuple(dict.fromkeys(names)))


def variables(values: Sequence[str]) -> dict[str, str]:
    """Return the variable by which a container's capabilities are known; none where `--gpus` names none."""
    named = [name for text in values if (one := parse(text)) is not None for name in one.capabilities]
    return {VARIABLE: ",".join(dict.fromkeys(named))} if named else {}


def _fields(text: str, words: Sequence[str]) -> tuple[Mapping[str, str], list[str]]:
    """Return fields by their keys, and the names of devices."""
    given: dict[str, str] = {}
    names: list[str] = []
    last = ""
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and last == "device":  # device=0,2 without the quotes of docker
            names.append(word)
            continue
        if not equals and last == "capabilities":
            quoted = f"--gpus '\"capabilities={given['capabilities']},{word}\",...'"
            raise _invalid(text, f'"{word}" is not a number of GPUs', f"several capabilities are quoted: {quoted}")
        last, value = (key, value) if equals else ("count", word)
        if last not in _FIELDS:
            raise _invalid(text, f'docker has no "{last}"', f"it has {', '.join(_FIELDS)}")
        if last in given:
            raise _invalid(text, f'"{last}" is given twice', "give it once")
        given[last] = value
        if last == "device":
            names += [one for one in value.split(",") if one]
    return given, names


def _capabilities(text: str, value: str) -> tuple[str, ...]:
    named = [name for name in value.split(",") if name and name not in _IMPLIED]
    if unknown := [name for name in named if name not in {*_CAPABILITIES, _EVERY}]:
        raise _invalid(text, f'there is no capability "{unknown[0]}"', f"one of {', '.join(_CAPABILITIES)}")
    return tuple(named)


def _by_name(text: str, names: Sequence[str]) -> errors.Invalid:
    shown = text.strip("\"'")
    is_every = any(name == _EVERY or name.endswith(f"={_EVERY}") for name in names)
    message = f'GPUs are asked for by number, not by name: "{shown}"'
    return errors.Invalid(message, reason="GPUsByName", hint=f"-g {_EVERY if is_every else len(names)}")


def _invalid(text: str, problem: str, hint: str) -> errors.Invalid:
    return errors.Invalid(f"--gpus {text}: {problem}", reason="GPUsInvalid", hint=hint)
