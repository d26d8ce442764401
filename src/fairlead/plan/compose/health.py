"""Makes probes and hooks of a service's health check and life cycle. Pure.

A probe never ends a container, as docker's check does not: it says whether the container is ready. While the start
period lasts it runs at `start_interval`, by a startup probe that is never given up. The names of fields are
Kubernetes'.
Source: Compose specification, "healthcheck", "post_start", "pre_stop"; docker's HEALTHCHECK defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead.plan.compose import value
from fairlead.plan.compose.fields import Remarks, judge

_INTERVAL_S: Final = 30.0
_TIMEOUT_S: Final = 30.0
_RETRIES: Final = 3
_START_INTERVAL_S: Final = 5.0
_NEVER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A health check."""

    command: tuple[str, ...]
    interval_s: float = _INTERVAL_S
    timeout_s: float = _TIMEOUT_S
    retries: int = _RETRIES
    start_period_s: float = 0.0
    start_interval_s: float = _START_INTERVAL_S

    @property
    def patience_s(self) -> float:
        """Return after how long a container that was never healthy is unhealthy."""
        return self.start_period_s + self.retries * (self.interval_s + self.timeout_s)


def check(service: Mapping[str, Any], path: str, remarks: Remarks) -> Check | None:
    """Return a service's health check; None: it has none. Raises: Invalid."""
    given = value.mapping(service.get("healthcheck"), f"{path}.healthcheck")
    where = f"{path}.healthcheck"
    judge("healthcheck", given, where, remarks)
    if not given or value.boolean(given.get("disable", False), f"{where}.disable"):
        return None
    test = value.texts(given.get("test"), f"{where}.test")
    if not test:
        remarks.say(where, "the image's own check is not run: write its test here")
        return None
    if test[0] == "NONE":
        return None
    if test[0] == "CMD-SHELL" and len(test) == 2:
        command: tuple[str, ...] = ("/bin/sh", "-c", test[1])
    elif test[0] == "CMD" and len(test) > 1:
        command = tuple(test[1:])
    else:
        raise value.invalid(f"{where}.test", "it begins with CMD, CMD-SHELL or NONE, and its command follows")

    def span(key: str, default: float) -> float:
        return default if given.get(key) is None else value.span(given[key], f"{where}.{key}")

    retries = given.get("retries")
    return Check(
        command=command,
        interval_s=span("interval", _INTERVAL_S) or _INTERVAL_S,
        timeout_s=span("timeout", _TIMEOUT_S) or _TIMEOUT_S,
        retries=_RETRIES if retries is None else value.whole(retries, f"{where}.retries") or _RETRIES,
        start_period_s=span("start_period", 0.0),
        start_interval_s=span("start_interval", _START_INTERVAL_S) or _START_INTERVAL_S,
    )


def probes(wanted: Check | None) -> dict[str, Any]:
    """Return the probes of a container."""
    if wanted is None:
        return {}
    doing = {"exec": {"command": list(wanted.command)}, "timeoutSeconds": _whole(wanted.timeout_s)}
    found = {
        "readinessProbe": {**doing, "periodSeconds": _whole(wanted.interval_s), "failureThreshold": wanted.retries}
    }
    if wanted.start_period_s:
        often = min(wanted.start_interval_s, wanted.interval_s)
        found["startupProbe"] = {**doing, "periodSeconds": _whole(often), "failureThreshold": _NEVER}
    return found


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def hooks(service: Mapping[str, Any], path: str, remarks: Remarks) -> dict[str, Any]:
    """Return what runs in a container after its start and before its end. Raises: Invalid."""
    found = dict[str, Any]()
    for key, name in (("post_start", "postStart"), ("pre_stop", "preStop")):
        entries = value.sequence(service.get(key), f"{path}.{key}")
        if len(entries) > 1:
            remarks.refuse(f"{path}.{key}", "one command is run: write them as one")
        for at, one in enumerate(entries[:1]):
            where = f"{path}.{key}[{at}]"
            given = value.mapping(one, where)
            value.only(given, ("command", "user", "privileged", "working_dir", "environment"), where)
            for more in ("user", "privileged", "working_dir", "environment"):
                if given.get(more):
                    remarks.refuse(f"{where}.{more}", "the command runs as the container's program does")
            words = value.words(given.get("command"), f"{where}.command")
            if not words:
                raise value.invalid(f"{where}.command", "it is needed")
            found[name] = {"exec": {"command": words}}
    return {"lifecycle": found} if found else {}
