"""Checks a list of partitions before it is believed: a Manager, or the agent beside it, may say anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairlead import errors
from fairlead.model.fabric import Partition
from fairlead.silicon.fabric import abi

INVALID: Final = "FabricListInvalid"


def check_count(what: str, count: int, most: int) -> None:
    """Refuse more of something than the library has room for. Raises: ProtocolError (`FabricListInvalid`)."""
    if count > most:
        message = f"the Fabric Manager lists {count} {what}, and at most {most} fit"
        raise errors.ProtocolError(message, reason=INVALID)


def checked(found: Sequence[Partition]) -> tuple[Partition, ...]:
    """Return a list of partitions that does not contradict itself. Raises: ProtocolError (`FabricListInvalid`)."""
    ids, active = set[int](), dict[int, int]()
    for one in found:
        modules = one.modules
        if one.id in ids:
            raise _contradiction(f"partition {one.id} twice")
        ids.add(one.id)
        if not modules or len(set(modules)) < len(modules):
            raise _contradiction(f"partition {one.id} with " + ("one GPU twice" if modules else "no GPU"))
        if odd := next((module for module in modules if not 1 <= module <= abi.MOST_GPUS), None):
            raise _contradiction(f"GPU {odd} in partition {one.id}; physical ids are 1 to {abi.MOST_GPUS}")
        if 0 in modules:
            raise _contradiction(f"GPU 0 in partition {one.id}; physical ids are 1 to {abi.MOST_GPUS}")
        for module in modules if one.is_active else ():
            if (other := active.setdefault(module, one.id)) != one.id:
                raise _contradiction(f"GPU {module} in the active partitions {other} and {one.id}")
    return tuple(found)


def _contradiction(what: str) -> errors.ProtocolError:
    message = f"the Fabric Manager lists {what}"
    return errors.ProtocolError(message, reason=INVALID, hint="see its log and its topology file")
