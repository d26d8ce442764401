"""Translates a device plugin's answer into the CDI names that an engine is given, whichever strategy it answers by.

A real kubelet hands variables and mounts on, and NVIDIA's runtime makes devices of them. The embedded kubelet's engine
reads CDI only, so the words of an answer become names here: of what the agent's own specs define, else of the vendor's
kind. A plugin that answers by several strategies says the same devices by each, so a word that a CDI name covers counts
once. What no spec defines, and an answer for GPUs that gives none, is refused: the container would start without them.
Source: NVIDIA k8s-device-plugin documentation, "device-list-strategy", "cdi-annotation-prefix"; `plan.shim.request`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from fairlead import errors
from fairlead.model import cdikind
from fairlead.model.container.visibledevices import VARIABLE, VOLUME_ROOT
from fairlead.plan.shim import request
from fairlead.wire.proto import deviceplugin_pb2 as pb
from fairlead_cdi import annotation, names

UNTRANSLATABLE: Final = "AnswerUntranslatable"
_EMPTY: Final = "/dev/null"
_GPU_DOMAINS: Final = frozenset(kind.partition("/")[0] for kind in cdikind.GPUS.values())
_GPU_NAMES: Final = ("gpu", "mig-")
_GPU_IDS: Final = ("GPU-", "MIG-")
"""How names of resources and ids of devices begin that are GPUs; vendors have network devices in their domains too."""
_POLICY: Final = request.Policy()


def named(answer: pb.ContainerAllocateResponse) -> tuple[str, ...]:
    """Return the CDI names that an answer says itself: by field, and by annotations of any prefix."""
    noted = [
        part.strip()
        for key in sorted(answer.annotations)
        if key.startswith(annotation.PREFIX) or _is_qualified(answer.annotations[key])
        for part in answer.annotations[key].split(",")
    ]
    return tuple(dict.fromkeys([*(item.name for item in answer.cdi_devices), *noted]))


def _is_qualified(value: str) -> bool:
    return all(names.is_qualified(part.strip()) for part in value.split(","))


def asked(answer: pb.ContainerAllocateResponse) -> request.Request:
    """Return what an answer asks for by variables and mounts, without what it names by CDI as well."""
    mounts = [mount.container_path for mount in answer.mounts if mount.host_path == _EMPTY]
    found = request.read_answer(dict(answer.envs), mounts, _POLICY)
    covered = {cdikind.device_of(name) for name in named(answer)}
    found.names = tuple(name for name in found.names if cdikind.device_of(name) not in covered)
    return found


def is_request(mount: pb.Mount) -> bool:
    """Return whether a mount of an answer names a device and is nothing else."""
    return mount.host_path == _EMPTY and mount.container_path.startswith(VOLUME_ROOT)


def translate(
    answer: pb.ContainerAllocateResponse, resource: str, ids: Sequence[str], defined: Collection[str]
) -> tuple[str, ...]:
    """Return all CDI names that stand for an answer, each once.

    Args:   ids: device ids that were allocated.   defined: fully qualified names in this machine's specs; looked at
            only where `asked` has names.
    Raises: Unavailable (`AnswerUntranslatable`): a device that no spec defines, or none at all for GPUs.
    """
    own, words = named(answer), asked(answer)
    found = request.resolve(words, _POLICY, dict.fromkeys(defined)) if words.names else ()
    missing = [cdikind.device_of(name) for name in found if name not in defined]
    if missing:
        message = (
            f"the plugin of {resource} answered by {_ways(answer)}, and no CDI spec of this machine defines "
            f"{', '.join(missing)}"
        )
        raise _untranslatable(message)
    every = tuple(dict.fromkeys([*own, *found]))
    if _is_of_gpus(resource, ids) and not every and not answer.devices:
        message = f"the plugin of {resource} answered for {', '.join(ids)} with nothing that gives a GPU"
        raise _untranslatable(message)
    return every


def _is_of_gpus(resource: str, ids: Sequence[str]) -> bool:
    domain, _, name = resource.partition("/")
    is_named = domain in _GPU_DOMAINS and name.startswith(_GPU_NAMES)
    return bool(ids) and (is_named or any(one.startswith(_GPU_IDS) for one in ids))


def _ways(answer: pb.ContainerAllocateResponse) -> str:
    mounts = "volume mounts" if any(is_request(mount) for mount in answer.mounts) else ""
    said = f"{VARIABLE}={answer.envs[VARIABLE]}" if VARIABLE in answer.envs else ""
    return " and ".join(part for part in (said, mounts) if part) or "variables"


def _untranslatable(message: str) -> errors.Unavailable:
    hint = (
        "let the agent or `fairlead cdi generate` write this machine's specs (`fairlead cdi list` shows them), or let "
        "the plugin answer by CDI: NVIDIA's takes DEVICE_LIST_STRATEGY=cdi-cri"
    )
    return errors.Unavailable(message, reason=UNTRANSLATABLE, hint=hint)
