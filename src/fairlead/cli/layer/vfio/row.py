"""Declares what is shown of a function, and finds the functions that a person means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.cli.core import output
from fairlead.frozen import frozen
from fairlead.model.vfio import Function, FunctionKind, Holder, Snapshot
from fairlead.plan.vfio import verdict
from fairlead.silicon.vfio import registers

_UNKNOWN: Final = "VFIOFunctionUnknown"
_NAMES: Final = "`fairlead vfio list -o wide` shows each with its address and key; a serial number is a name too"


@frozen
class Row:
    """One function, what it is, and what stands in the way of passing it through."""

    address: str
    kind: str
    key: str
    """Who it is: by serial number, or by place where it has none."""
    serial: str
    model: str
    ids: str
    module: int | None
    """Place on the baseboard; None: it has none, or cannot be asked now."""
    group: str | None
    members: tuple[str, ...]
    """Every function of its group."""
    driver: str
    override: str
    nodes: tuple[str, ...]
    numa_node: int | None
    link: str
    reset_methods: tuple[str, ...] | None
    holders: tuple[Holder, ...]
    is_ready: bool
    """Whether it can be given to a machine now."""
    obstacles: tuple[verdict.Obstacle, ...]
    problems: tuple[str, ...]

    @property
    def way(self) -> str:
        """What stands in the way, in one sentence."""
        first = next((one for one in self.obstacles if one.stage is not verdict.Stage.NOTE), None)
        return "ready" if first is None else first.sentence


def list_rows(root: Path, snapshot: Snapshot, chosen: Iterable[str], holders: verdict.Holders) -> list[Row]:
    """Return a row for each address, in the order of the scan."""
    wanted = frozenset(chosen)
    return [_row(root, snapshot, one, holders) for one in snapshot.functions if one.address in wanted]


def _row(root: Path, snapshot: Snapshot, one: Function, holders: verdict.Holders) -> Row:
    found = verdict.judge(snapshot, one, holders)
    who = tuple(holders.get(one.address, ()))
    return Row(
        address=one.address,
        kind=one.kind.value,
        key=one.identity.key,
        serial=one.identity.serial,
        model=one.model,
        ids=one.ids,
        module=_module(root, one, is_open=bool(who)),
        group=one.group,
        members=tuple(member.address for member in one.members),
        driver=one.driver,
        override=one.override,
        nodes=tuple(node.path for node in one.nodes),
        numa_node=one.numa_node,
        link=_link(one),
        reset_methods=one.reset_methods,
        holders=who,
        is_ready=found.is_ready,
        obstacles=found.obstacles,
        problems=one.problems,
    )


def _module(root: Path, one: Function, *, is_open: bool) -> int | None:
    """Return a GPU's module number; its registers are read only while it has no user and no vendor's driver."""
    is_free = one.kind is FunctionKind.GPU and not is_open and (not one.driver or one.is_bound_to_vfio)
    return registers.read_module(root, one).number if is_free else None


def _link(one: Function) -> str:
    link = one.link
    if link.width is None or link.speed_gts is None:
        return ""
    return f"{link.speed_gts:g} GT/s x{link.width}" + (f" of x{link.max_width}" if link.is_degraded else "")


def _held(row: Row) -> str:
    names = [f"{one.name}[{one.pid}]" if one.pid else "not seen" for one in row.holders if not one.is_doubt]
    return ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")


COLUMNS: Final[Sequence[output.Column[Row]]] = (
    output.Column("FUNCTION", lambda row: row.address),
    output.Column("KIND", lambda row: row.kind, rank=4),
    output.Column("MODEL", lambda row: row.model or row.ids, rank=5),
    output.Column("MODULE", lambda row: "" if row.module is None else str(row.module), rank=3),
    output.Column("GROUP", lambda row: row.group or "", rank=1),
    output.Column("DRIVER", lambda row: row.driver),
    output.Column("HELD BY", _held, rank=2),
    output.Column("KEY", lambda row: row.key, is_wide=True),
    output.Column("NODES", lambda row: ", ".join(row.nodes), is_wide=True),
    output.Column("NUMA", lambda row: "" if row.numa_node is None else str(row.numa_node), is_wide=True),
    output.Column("LINK", lambda row: row.link, is_wide=True),
    output.Column(
        "RESETS",
        lambda row: "?" if row.reset_methods is None else ", ".join(row.reset_methods) or "none",
        is_wide=True,
    ),
    output.Column("STATE", lambda row: row.way, is_folded=True),
)


def find_addresses(snapshot: Snapshot, names: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of what is named by PCI address (domain 0000 may be left out), serial number or key.

    Raises: NotFound: nothing here has that name.   Invalid: several have that serial number.
    """
    return tuple(dict.fromkeys(_find(snapshot, _by_name(snapshot), name) for name in names))


def _by_name(snapshot: Snapshot) -> Mapping[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for one in snapshot.functions:
        short = one.address.removeprefix("0000:")
        own = one.kind is not FunctionKind.AUXILIARY  # a board's other functions say the serial number of its GPU
        for name in {one.address, short, *((one.identity.key, one.identity.serial) if own else ())} - {""}:
            found.setdefault(name, []).append(one)
    return found


def _find(snapshot: Snapshot, known: Mapping[str, list[Function]], name: str) -> str:
    found = known.get(name.strip().lower(), [])
    if len(found) > 1:
        named = ", ".join(one.address for one in found)
        message = f'"{name}" is the serial number of several: {named}'
        raise errors.Invalid(message, reason="VFIOFunctionAmbiguous", hint="give the address")
    if found:
        return found[0].address
    message = f'no function "{name}" here that can be passed through'
    if (unreadable := next((one for one in snapshot.unreadable if name in one.address), None)) and name:
        message = unreadable.message
    near = errors.closest(name, known)
    raise errors.NotFound(message, reason=_UNKNOWN, hint=f"is it {near}?" if near else _NAMES)
