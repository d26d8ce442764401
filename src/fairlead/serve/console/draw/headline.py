"""Says in one line how a container stands, and where a form with the same request is. Pure."""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from fairlead.plan.pod import personwords
from fairlead.serve.v1.containers.view import ContainerView, Explanation

_WHOLE: Final = "nvidia.com/gpu"
_SENTENCES: Final = {
    "creating": "Starting",
    "stopping": "Stopping",
    "succeeded": "Finished",
    "stopped": "Stopped",
    "crashed": "Crashed, and will be started again",
    "gone": "Removed",
}
_LONGEST_ADDRESS: Final = 1500


def devices(resources: Mapping[str, int], count: int = 0) -> str:
    """Return what a container asks for: `2 GPUs`, `1 nvidia.com/mig-1g.10gb`. Args: count: devices of claims."""
    named = [f"{n} GPU{'' if n == 1 else 's'}" if name == _WHOLE else f"{n} {name}" for name, n in resources.items()]
    more = count - sum(resources.values())
    return " and ".join((*named, *([f"{more} claimed device{'' if more == 1 else 's'}"] if more > 0 else [])))


def headline(one: ContainerView) -> str:
    """Return the line that a container's page begins with."""
    asked = devices(one.resources, one.gpus)
    if one.state == "running":
        return f"Running on {one.node}" + (f" with {asked}" if asked else "")
    if one.state == "pending":
        return f"Waiting for {asked}" if asked else "Waiting for a place"
    if one.state == "failed":
        return f"Failed with exit code {one.exit_code}" if one.exit_code is not None else "Failed"
    return _SENTENCES.get(one.state, one.state.capitalize())


def why(one: ContainerView, explanation: Explanation) -> tuple[str, ...]:
    """Return what explains the headline; empty: the headline, or the numbers of the wait, say it all."""
    if one.state == "running" and explanation.summary.startswith("on "):
        return ()
    if one.state == "pending" and explanation.waiting is not None and explanation.waiting.resource:
        return ()
    said = (
        personwords.message(line).removeprefix("Unschedulable: ")
        for line in (explanation.summary, explanation.diagnosis)
    )
    found = {line.rstrip("."): line for line in said}
    return tuple(line for line in found.values() if line and line != one.state)


def form_address(one: ContainerView, tenancy: str) -> str:
    """Return the address of the submit form, filled in with what a container was asked to be.

    Values that are not shown, ports, volumes, labels and claims are left out; `copied` has the form say so.
    """
    wanted: dict[str, Any] = {"image": one.image, "tenancy": tenancy, "copied": "most"}
    if len(one.resources) == 1:
        ((name, count),) = one.resources.items()
        wanted |= {"gpus": count, "resource": "gpus" if name == _WHOLE else name}
    else:
        wanted["gpus"] = 0
    if (asked := one.definition) is not None:
        wanted["command"], wanted["args"] = shlex.join(asked.command), shlex.join(asked.args)
        wanted["env"] = "\n".join(f"{each.name}={each.value}" for each in asked.env if each.value is not None)
        wanted["cpu"], wanted["memory"] = asked.limits.get("cpu", ""), asked.limits.get("memory", "")
        wanted["restart"] = asked.restart
    if one.reservation:
        wanted["reservation"] = one.reservation
    if one.time_limit_s:
        wanted["time_limit_s"] = one.time_limit_s
    address = _form(wanted)
    return address if len(address) <= _LONGEST_ADDRESS else _form({"image": one.image, "copied": "image"})


def _form(fields: Mapping[str, Any]) -> str:
    return f"/console/run?{urllib.parse.urlencode({name: text for name, text in fields.items() if text != ''})}"
