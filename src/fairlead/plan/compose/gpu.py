"""Reads which GPUs a service asks for: reservations of devices, `gpus`, CDI names, and the old `runtime: nvidia`. Pure.

Source: Compose specification, "deploy.resources.reservations.devices", "gpus"; moby daemon/nvidia_linux.go and
daemon/cdi.go (drivers); NVIDIA container toolkit, NVIDIA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead.plan.compose import fields, value
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.pod import device

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
_ALL: Final = frozenset({"all", "-1"})
_DRIVERS: Final = frozenset({"", "nvidia", "cdi"})
_KNOWN: Final = ("compute", "compat32", "display", "graphics", "ngx", "utility", "video")
_IMPLIED: Final = frozenset({"gpu", "nvidia"})
_CDI: Final = re.compile(r"(?:nvidia\.com/gpu)=(?P<name>[A-Za-z0-9:._-]+)")
_MOST: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs of the machine, as far as the project asks for them."""

    total: int | None = None
    """How many it hands out; None: not asked."""
    uuids: Mapping[str, str] | None = None
    """UUIDs of GPUs by their index, as text; None: not asked."""
    by_claims: bool = False
    """Whether GPUs are given by claims alone (`node.door = claims`), which may name certain ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a container asks for."""

    count: int = 0
    uuids: tuple[str, ...] = ()
    """Certain GPUs, in place of a number."""
    capabilities: tuple[str, ...] = ()
    """Of the driver; none: the image's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    path: str
    count: str = ""
    ids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def asks(services: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a project asks for GPUs."""
    remarks = Remarks()
    return any(_requests(service, f"services.{name}", remarks) for name, service in services.items())


def asked(service: Mapping[str, Any], path: str, machine: Machine, remarks: Remarks) -> Asked:
    """Return what a service's containers ask for, each. Raises: Invalid."""
    count, uuids, capabilities = 0, list[str](), list[str]()
    for one in _requests(service, path, remarks):
        capabilities += one.capabilities
        if one.count in _ALL:
            if machine.total is None:
                remarks.refuse(one.path, "how many `all` are is known to a running service alone: write a number")
            else:
                count += machine.total
                remarks.note(one.path, f"all {machine.total} GPUs, which no other container has meanwhile")
        elif one.ids and machine.total is None:
            remarks.refuse(one.path, "which GPUs there are is known to a running service alone: write count")
        elif one.ids:
            found = _uuids(one, machine, remarks)
            if machine.by_claims:
                uuids += found
            else:
                count += len(dict.fromkeys(found))
                remarks.say(one.path, f"{len(found)} GPUs are given, numbered from 0 in the container; which is chosen")
        else:
            count += value.whole(one.count, one.path, most=_MOST)
    if count and uuids:
        remarks.refuse(
            f"{path}.deploy.resources.reservations.devices", "a number beside certain GPUs: write one of them"
        )
    return Asked(count=count, uuids=tuple(dict.fromkeys(uuids)), capabilities=tuple(dict.fromkeys(capabilities)))


def _uuids(request: _Request, machine: Machine, remarks: Remarks) -> list[str]:
    known, found = machine.uuids or {}, list[str]()
    for one in request.ids:
        if one in known:
            found.append(known[one])
        elif one in known.values():
            found.append(one)
        else:
            have = f"it has {', '.join(sorted(known, key=int))}" if known else "ask a running service"
            remarks.refuse(request.path, f'there is no GPU "{value.shown(one)}" on this machine: {have}')
    return found


def _requests(service: Mapping[str, Any], path: str, remarks: Remarks) -> list[_Request]:
    """Return the requests of a service; Raises: Invalid."""
    found = list[_Request]()
    deploy = value.mapping(service.get("deploy"), f"{path}.deploy")
    resources = value.mapping(deploy.get("resources"), f"{path}.deploy.resources")
    where = f"{path}.deploy.resources.reservations"
    reserved = value.mapping(resources.get("reservations"), where)
    for at, one in enumerate(value.sequence(reserved.get("devices"), f"{where}.devices")):
        found += _request(value.mapping(one, f"{where}.devices[{at}]"), f"{where}.devices[{at}]", remarks)
    for at, one in enumerate(service.get("gpus") or ()):
        given = value.mapping(one, f"{path}.gpus[{at}]")
        found += _request(given, f"{path}.gpus" if len(service["gpus"]) == 1 else f"{path}.gpus[{at}]", remarks)
    found += _named(service, path, remarks)
    return found or _by_runtime(service, path)


def _request(given: Mapping[str, Any], path: str, remarks: Remarks) -> list[_Request]:
    fields.judge("device", given, path, remarks)
    driver = str(given.get("driver") or "")
    if driver not in _DRIVERS:
        remarks.refuse(f"{path}.driver", f'"{value.shown(driver)}" is not a driver here: nvidia or cdi')
        return []
    words = _flat(given.get("capabilities"), f"{path}.capabilities")
    if driver != "cdi" and not _IMPLIED & set(words):
        shown = ", ".join(words) or "none"
        remarks.refuse(f"{path}.capabilities", f"GPUs have the capability gpu, and {value.shown(shown)} is asked for")
        return []
    if unknown := [one for one in words if one not in _KNOWN and one not in _IMPLIED]:
        remarks.say(f"{path}.capabilities", f"the driver has no {value.shown(unknown[0])}")
    capabilities = tuple(one for one in words if one in _KNOWN)
    ids, count = value.texts(given.get("device_ids"), f"{path}.device_ids"), given.get("count")
    if ids and count is not None:
        raise value.invalid(f"{path}.count", "either count or device_ids is given, not both")
    if ids:
        names = tuple(_plain_id(one) for one in ids)
        if "all" in names:
            return [_Request(path=f"{path}.device_ids", count="all", capabilities=capabilities)]
        return [_Request(path=f"{path}.device_ids", ids=names, capabilities=capabilities)]
    word = "all" if count is None else str(count)
    if word not in _ALL:
        value.whole(word, f"{path}.count", most=_MOST)
    return [_Request(path=f"{path}.count", count=word, capabilities=capabilities)]


def _flat(given: Any, path: str) -> list[str]:
    """Return capabilities; docker's own form is a list of lists."""
    entries = value.sequence(given, path)
    return [word for at, one in enumerate(entries) for word in value.texts(one, f"{path}[{at}]")]


def _plain_id(word: str) -> str:
    found = _CDI.fullmatch(word)
    return found["name"] if found else word


def others(service: Mapping[str, Any]) -> list[str]:
    """Return the CDI names among `devices` that are not GPUs' (`run --device`)."""
    return [word for word in _words(service) if _is_other(word)]


def _words(service: Mapping[str, Any]) -> list[str]:
    return [str(one.get("source") if isinstance(one, dict) else one) for one in service.get("devices") or ()]


def _is_other(word: str) -> bool:
    return device.is_name(word) and not device.is_owned(word)


def _named(service: Mapping[str, Any], path: str, remarks: Remarks) -> list[_Request]:
    """Return the GPUs among `devices`: CDI names; nodes of the machine are refused."""
    ids = list[str]()
    for at, word in enumerate(_words(service)):
        where = f"{path}.devices[{at}]"
        if found := _CDI.fullmatch(word):
            ids.append(found["name"])
        elif _is_other(word):
            continue  # see `others`
        elif device.is_name(word):
            remarks.refuse(where, f'"{value.shown(word)}" is of a kind of GPUs: write `gpus: 1` in place of devices')
        elif word.startswith("/dev/nvidia"):
            remarks.refuse(where, "the nodes of GPUs come with the GPU: write `gpus: 1` in place of devices")
        else:
            remarks.refuse(
                where, f'a device is given by its CDI name, vendor/class=name, and "{value.shown(word)}" is none'
            )
    if "all" in ids:
        return [_Request(path=f"{path}.devices", count="all")]
    return [_Request(path=f"{path}.devices", ids=tuple(ids))] if ids else []


def _by_runtime(service: Mapping[str, Any], path: str) -> list[_Request]:
    """Return what NVIDIA's runtime would give by a variable, which CUDA images set to `all`."""
    if str(service.get("runtime") or "") != "nvidia":
        return []
    word = (service.get("environment") or {}).get(VISIBLE)
    word = "all" if word is None else str(word).strip()
    where = f"{path}.environment.{VISIBLE}" if VISIBLE in (service.get("environment") or {}) else f"{path}.runtime"
    if word in {"", "none", "void"}:
        return []
    ids = tuple(part.strip() for part in word.split(",") if part.strip())
    return [_Request(path=where, count="all")] if "all" in ids else [_Request(path=where, ids=ids)]


def selector(uuids: Sequence[str]) -> str:
    """Return the CEL expression that certain GPUs meet, and no others."""
    listed = ", ".join(f'"{one}"' for one in uuids)
    device = 'device.attributes["gpu.nvidia.com"]'
    return f'"uuid" in {device} && {device}.uuid in [{listed}]'
