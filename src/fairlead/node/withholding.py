"""Keeps devices back that are well and must not be given away, and says why.

The reasons come from the agent's other parts: the engine, the CDI specs, MIG, the ledger, MPS, and who else on the node
has the device. Each is asked anew at every advertisement, and nothing is remembered. They are asked by the core: an
error in an answer ends the agent, because a device whose state cannot be judged must not be given away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.ids import GPUUUID
from fairlead.node import enginegate, mpsparts
from fairlead.node.cdi import specfiles
from fairlead.node.deviceplugin import otherholders
from fairlead.node.inventory import latest
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import health as rules
from fairlead.plan.gpu.allocation import answer
from fairlead.plan.gpu.offer import advertise

SPEC_MISSING: Final = "CDISpecMissing"
LIST_TOO_LARGE: Final = "DeviceListTooLarge"
_LARGEST_LIST: Final = 4 << 20
"""Bytes of what a kubelet takes from a plugin at once. Source: grpc-go's default, kubernetes issue 109304."""
_LINE: Final = 24
"""Bytes of a device in it beside its id, at most: health, NUMA node, tags and lengths."""

Problem = tuple[str, str]
"""Reason and message."""


class Withholding:
    """Asks the agent's parts what speaks against giving a device away."""

    def __init__(
        self,
        *,
        engine: enginegate.EngineGate,
        conflicts: latest.Latest[tuple[conflict.Conflict, ...]],
        specs: specfiles.SpecFiles,
        others: otherholders.OtherHolders,
        parts: Sequence[Callable[[Device], Problem | None]],
        mps: mpsparts.MPSPart | None,
    ) -> None:
        """Take who is asked. Args: parts: each gives the reason of one part of the agent, None where it has none."""
        self._engine, self._conflicts, self._specs, self._others = engine, conflicts, specs, others
        self._parts, self._mps = parts, mps

    def judge(
        self, offered: Iterable[advertise.Advertisement]
    ) -> tuple[tuple[advertise.Advertisement, ...], Mapping[GPUUUID, rules.Verdict]]:
        """Return what is offered with devices kept back as unhealthy, and by GPU why."""
        disputed = {name: one for one in self._conflicts.value for name in one.devices}
        withheld: dict[GPUUUID, rules.Verdict] = {}

        def judged(ad: advertise.Advertisement, device: Device) -> Device:
            problem = self._find_problem(ad, device, disputed) if device.is_healthy else None
            if problem is None:
                return device
            withheld[device.gpu] = rules.Verdict(state=rules.State.FAULTY, reason=problem[0], message=problem[1])
            return dataclasses.replace(device, is_healthy=False, reason=problem[0])

        ads = []
        for ad in offered:
            if (problem := _too_large(ad)) is not None:  # the kubelet would end the plugin, again and again
                verdict = rules.Verdict(state=rules.State.FAULTY, reason=problem[0], message=problem[1])
                withheld |= dict.fromkeys((device.gpu for device in ad.devices), verdict)
                ads.append(dataclasses.replace(ad, devices=()))
            else:
                ads.append(dataclasses.replace(ad, devices=tuple(judged(ad, device) for device in ad.devices)))
        return tuple(ads), withheld

    def _find_problem(
        self, ad: advertise.Advertisement, device: Device, disputed: Mapping[str, conflict.Conflict]
    ) -> Problem | None:
        """Return why a device that is well must not be given away, None where it may.

        While the engine is not known devices stay offered, so that a pod that has them keeps them: Allocate refuses.
        """
        engine = self._engine.problem
        if engine is not None and engine.reason != answer.ENGINE_UNKNOWN:
            return engine.reason, errors.sentence(engine)
        for ask in self._parts:
            if (problem := ask(device)) is not None:
                return problem
        if (found := disputed.get(device.cdi_name)) is not None:
            return conflict.REASON, f"{found.message}; {found.remedy}"
        if device.cdi_name not in self._specs.names:
            return SPEC_MISSING, f"no CDI spec in {self._specs.folder} names it; the agent's log says why"
        if self._mps is not None and (problem := self._mps.problem(ad.rule.means, device)) is not None:
            return problem
        return self._others.problem(ad.resource, device)


def _too_large(ad: advertise.Advertisement) -> Problem | None:
    """Return why a kubelet would not take the list of a resource's devices, None where it would."""
    size = sum(len(device.id) + _LINE for device in ad.devices)
    if size <= _LARGEST_LIST:
        return None
    message = (
        f"{len(ad.devices)} devices of {ad.resource} are a list of {size} bytes, and a kubelet takes {_LARGEST_LIST}: "
        f"configure fewer replicas, {len(ad.devices) * _LARGEST_LIST // size} in all"
    )
    return LIST_TOO_LARGE, message
