"""Checks vGPUs: those that this machine lends to guests, and the licence of one that it is itself lent. Pure.

A licence is leased by the guest's driver, so the machine that lends a vGPU cannot say whether it has one: a person
looks in the guest. Without one a guest's vGPU works, slower and slower.
Source: NVIDIA Virtual GPU Client Licensing User Guide, "Enforcement of licensing".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.cli.doctor.finding import Finding
from fairlead.serve.backend.hardware import GPUListing, GPUView, VGPUView

_LICENCE_FIX: Final = (
    "put the client's token into /etc/nvidia/ClientConfigToken, FeatureType into /etc/nvidia/gridd.conf, and "
    "`systemctl restart nvidia-gridd`; `nvidia-smi -q | grep -A2 License` says what the driver thinks"
)
_IN_GUEST: Final = "in each guest: `nvidia-smi -q | grep -A2 License`, or `fairlead doctor`"


def check(found: GPUListing) -> Iterator[Finding]:
    """Yield a finding about what is lent, one for each vGPU that cannot be, and one for each licence."""
    if found.vgpus:
        yield _lent(found)
    is_served = any(one.resource for one in found.vgpus)
    for vgpu in found.vgpus:
        is_left_out = is_served and not vgpu.resource
        if vgpu.message or not vgpu.type or vgpu.health == "Unhealthy" or is_left_out:
            yield _broken(vgpu)
    for view in found.gpus:
        if view.gpu.is_virtual or view.gpu.licences is not None:
            yield _licence(view)


def _lent(found: GPUListing) -> Finding:
    kinds: dict[str, int] = {}
    for one in found.vgpus:
        kinds[one.type or "a type without a name"] = kinds.get(one.type or "a type without a name", 0) + 1
    held = sum(bool(one.holders) for one in found.vgpus)
    listed = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    return Finding(
        check="vgpu",
        level="ok",
        what=f"{len(found.vgpus)} vGPUs are lent ({listed}); containers hold {held}",
        why="their boards are not given whole; whether a guest has its licence only its own driver knows",
        fix=_IN_GUEST,
    )


def _broken(vgpu: VGPUView) -> Finding:
    what = vgpu.message or vgpu.reason
    if not what:
        what = "neither its files nor NVML say which type it has" if not vgpu.type else "the agent does not offer it"
    return Finding(
        check="vgpu",
        level="warn",
        what=f"vGPU {vgpu.id} of {vgpu.parent} ({vgpu.type or 'type unknown'}): {what}",
        why="no container gets it; the others work",
        fix="see the finding on its GPU" if vgpu.reason and not vgpu.message else _fix(vgpu),
    )


def _fix(vgpu: VGPUView) -> str:
    if vgpu.message:
        return "as the finding says; the agent looks again by itself"
    return f"`nvidia-smi vgpu -s` lists the types; `fairlead gpus` says what is offered of {vgpu.parent}"


def _licence(view: GPUView) -> Finding:
    gpu, licences = view.gpu, view.gpu.licences
    name = f"GPU {gpu.index} ({gpu.name}) is a vGPU"
    if not licences:
        what = f"{name}, and its driver does not say whether it has a licence"
        return Finding(check="vgpu", level="warn", what=what, why="without one it slows down", fix=_LICENCE_FIX)
    missing = [one.product for one in licences if not one.is_licensed]
    if missing:
        what = f"{name} without a licence for {', '.join(missing)}"
        why = "it slows down, some time after its start"
        return Finding(check="vgpu", level="warn", what=what, why=why, fix=_LICENCE_FIX)
    said = ", ".join(one.product + (f" (expires: {one.expires})" if one.expires else "") for one in licences)
    return Finding(check="vgpu", level="ok", what=f"{name}, licensed for {said}")
