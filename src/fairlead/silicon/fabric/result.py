"""Says what each return code of the Fabric Manager's library means, and who must act: `RESULTS`, one row a code.

Source: NVIDIA go-nvfm (Apache-2.0), pkg/nvfm/const.go; Fabric Manager User Guide, "Fabric Manager SDK".
"""

from __future__ import annotations

import enum
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen


class Act(enum.Enum):
    """What follows from a code."""

    RETRY = "call again later"
    """The Manager starts, is busy or lost the connection."""
    LOOK = "list, then judge"
    """The partition is as it was asked to be, if the list says so too."""
    IN_USE = "deactivate the other partition first"
    """A GPU of it is in another partition; the Manager resolves no overlap."""
    FAULT = "keep these GPUs back"
    """Links, switches or GPUs are broken: no retry helps."""
    CONFIGURE = "change the Manager's configuration"
    BUG = "mend the program"
    """Library, Manager and this program do not fit together."""


@frozen
class Result:
    """One return code."""

    name: str
    act: Act
    text: str
    hint: str = ""


_OVERLAP: Final = "deactivate the active partition that has these GPUs, once its machine has ended"
_LINKS: Final = "reset the GPUs; if it stays, look at SXid errors and the board's cables"
_VERSIONS: Final = "install the library, the Manager and the guests' driver in one version"
_STATE: Final = "list the partitions"

RESULTS: Final[dict[int, Result]] = {
    -1: Result(name="BADPARAM", act=Act.BUG, text="takes no such argument", hint=_STATE),
    -2: Result(name="GENERIC_ERROR", act=Act.RETRY, text="failed without a reason", hint="see its log"),
    -3: Result(
        name="NOT_SUPPORTED",
        act=Act.CONFIGURE,
        text="does not offer partitions in the mode it runs in",
        hint="set FABRIC_MODE=1 in fabricmanager.cfg",
    ),
    -4: Result(name="UNINITIALIZED", act=Act.BUG, text="library was not initialised"),
    -5: Result(name="TIMEOUT", act=Act.RETRY, text="did not answer in time", hint="see whether it runs"),
    -6: Result(name="VERSION_MISMATCH", act=Act.BUG, text="speaks another version than its library", hint=_VERSIONS),
    -7: Result(name="IN_USE", act=Act.IN_USE, text="has it in use", hint=_OVERLAP),
    -8: Result(
        name="NOT_CONFIGURED",
        act=Act.CONFIGURE,
        text="is not configured for partitions",
        hint="set FABRIC_MODE=1 in fabricmanager.cfg",
    ),
    -9: Result(
        name="CONNECTION_NOT_VALID",
        act=Act.RETRY,
        text="cannot be reached",
        hint="see whether it runs and listens there",
    ),
    -10: Result(name="NVLINK_ERROR", act=Act.FAULT, text="found an NVLink error", hint=_LINKS),
    -11: Result(name="RESOURCE_BAD", act=Act.FAULT, text="found a GPU or switch that is broken", hint=_LINKS),
    -12: Result(name="RESOURCE_IN_USE", act=Act.IN_USE, text="has a GPU of it in an active partition", hint=_OVERLAP),
    -13: Result(name="RESOURCE_NOT_IN_USE", act=Act.LOOK, text="does not have it in use", hint=_STATE),
    -14: Result(name="RESOURCE_EXHAUSTED", act=Act.RETRY, text="has no resources left", hint="see its log"),
    -15: Result(name="RESOURCE_NOT_READY", act=Act.RETRY, text="waits for GPUs or switches that are not ready"),
    -16: Result(name="PARTITION_EXISTS", act=Act.LOOK, text="has that partition already", hint=_STATE),
    -17: Result(name="PARTITION_ID_IN_USE", act=Act.LOOK, text="has that partition active", hint=_STATE),
    -18: Result(name="PARTITION_ID_NOT_IN_USE", act=Act.LOOK, text="does not have that partition active", hint=_STATE),
    -19: Result(name="PARTITION_NAME_IN_USE", act=Act.BUG, text="has a partition of that name"),
    -20: Result(name="PARTITION_NAME_NOT_IN_USE", act=Act.BUG, text="has no partition of that name"),
    -21: Result(name="PARTITION_ID_NAME_MISMATCH", act=Act.BUG, text="has that partition under another name"),
    -22: Result(name="NOT_READY", act=Act.RETRY, text="is still starting"),
    -23: Result(
        name="RESOURCE_USED_IN_THIS_PARTITION", act=Act.IN_USE, text="has a GPU of it in this partition", hint=_OVERLAP
    ),
    -24: Result(
        name="RESOURCE_USED_IN_ANOTHER_PARTITION",
        act=Act.IN_USE,
        text="has a GPU of it in another partition",
        hint=_OVERLAP,
    ),
    -25: Result(name="MISWIRED_TRUNKS", act=Act.FAULT, text="found trunk links that are miswired", hint=_LINKS),
    -26: Result(name="INSUFFICIENT_TRUNKS", act=Act.FAULT, text="found too few trunk links", hint=_LINKS),
    -27: Result(name="MISSING_SWITCHES", act=Act.FAULT, text="misses NVSwitches", hint=_LINKS),
    -28: Result(name="NETWORK_CONFIG", act=Act.FAULT, text="could not configure the network of switches", hint=_LINKS),
    -29: Result(name="ROUTE_PROGRAMMING", act=Act.FAULT, text="could not program routes", hint=_LINKS),
}
VERSION_MISMATCH: Final = -6
NOT_READY: Final = -22
CONNECTION_LOST: Final = frozenset({-5, -9})
"""Codes after which a connection is made anew."""

_KINDS: Final = {
    Act.RETRY: errors.Unavailable,
    Act.LOOK: errors.Conflict,
    Act.IN_USE: errors.Conflict,
    Act.FAULT: errors.DeviceFault,
    Act.CONFIGURE: errors.Unavailable,
    Act.BUG: errors.ProtocolError,
}
PREFIX: Final = "Fabric"


def reason_of(code: int) -> str:
    """Return the stable token of a code, `FabricResourceInUse`."""
    known = RESULTS.get(code)
    return f"{PREFIX}{known.name.title().replace('_', '')}" if known else f"{PREFIX}CodeUnknown"


def error_of(code: int, what: str) -> errors.FairleadError:
    """Return the error of a code that is not success. Args: what: what failed, `partition 3 was not activated`."""
    known = RESULTS.get(code)
    if known is None:
        message = f"{what}: the Fabric Manager's library returned {code}, which no version of it is known to return"
        return errors.ProtocolError(message, reason=reason_of(code), hint=_VERSIONS, code=code)
    message = f"{what}: the Fabric Manager {known.text} ({known.name}, {code})"
    return _KINDS[known.act](message, reason=reason_of(code), hint=known.hint or None, code=code)


def act_of(error: errors.FairleadError) -> Act | None:
    """Return what follows from an error of `error_of`; None: another's."""
    known = RESULTS.get(code) if isinstance(code := error.context.get("code"), int) else None
    return known.act if known else None
