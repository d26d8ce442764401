"""Judges how containers take other amounts of CPU and memory, in the API server's words. Pure.

Source: kubernetes pkg/apis/core/validation (validateResizePolicy).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead import errors
from fairlead.wire.kubernetes import core

RESIZED: Final = ("cpu", "memory")
"""Resources whose amounts change while a container runs."""
RESTART: Final = "RestartContainer"
_POLICIES: Final = ("NotRequired", RESTART)


def problems(path: str, item: core.Container, *, pod_policy: str) -> Iterator[str]:
    """Yield what is wrong with a container's `resizePolicy`. Args: pod_policy: the pod's restart policy."""
    seen = set[str]()
    for index, one in enumerate(item.resize_policy):
        at, name = f"{path}.resizePolicy[{index}]", errors.readable(one.resource_name[:80])
        if one.resource_name not in RESIZED:
            yield f'{at}.resourceName: Unsupported value: "{name}": supported values: {", ".join(RESIZED)}'
        if one.restart_policy not in _POLICIES:
            shown = errors.readable(one.restart_policy[:80])
            yield f'{at}.restartPolicy: Unsupported value: "{shown}": supported values: {", ".join(_POLICIES)}'
        if one.restart_policy == RESTART and (item.restart_policy or pod_policy) == "Never":
            yield f"{at}.restartPolicy: Invalid value: must be NotRequired where the container is never restarted"
        if one.resource_name in seen:
            yield f'{at}.resourceName: Duplicate value: "{name}"'
        seen.add(one.resource_name)
