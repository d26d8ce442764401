"""Holds what a node says of passed-through GPUs against each other: ledger, CDI specs, sysfs, open nodes, the board.

It imports nothing of Fairlead, and shares no rule with it: it reads the ledger by SQL, sysfs and configuration space by
their public layout, and who has a node open from /proc. It runs in a node too, whose Python has the standard library.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

GPU_CLASSES = (0x0300, 0x0302)
LEDGER = "/state/fairlead/lease/ledger.db"
"""Of an HGX node of the system tests."""
CLEAN = ("Free",)
"""States in which nobody has a GPU and the next tenant may get it at once."""
WITH_TENANT = ("Held", "Releasing", "Unknown")
"""States in which a machine may still run on a GPU."""


def find(
    root: str,
    ledger: str,
    cdi: str,
    *,
    agent: int,
    pids: Collection[int] | None = None,
    nodes: str = "/dev/vfio",
    board: Mapping[str, Mapping[str, Any]] | None = None,
    only: Collection[str] | None = None,
) -> list[str]:
    """Return what contradicts itself, one line each; none where all is as it should be.

    Args: root: has /sys.   agent: its pid; 0: none runs.   pids: whose descriptors are looked at; None: everybody's.
          nodes: the folder of the groups' nodes.
          only: addresses of the GPUs that are passed through; None: all.
          board: by PCI address what the hardware says: `is_clean`, `is_used` by a machine, and, where it counts its
          resets, how many there were by its bus (`bus`) and by itself (`flr`) since the ledger began.
    """
    functions = {address: one for address, one in _functions(Path(root)).items() if only is None or address in only}
    rows = _rows(Path(ledger))
    specs = _specs(Path(cdi))
    openers = _openers(nodes, pids)
    return [
        *_of_functions(functions),
        *_of_ledger(functions, rows),
        *_of_specs(functions, rows, specs, nodes),
        *_of_nodes(functions, rows, openers, nodes, agent),
        *_of_board(functions, rows, board or {}),
        *_of_resets(functions, rows, _returns(Path(ledger)), board or {}),
    ]


def find_in_node(agent: int, only: list[str], board: dict[str, dict[str, Any]]) -> list[str]:
    """Look at the machine that this runs on, an HGX node of the system tests."""
    return find("/", LEDGER, "/var/run/cdi", agent=agent, only=only, board=board)


def rows_in_node() -> dict[str, dict[str, Any]]:
    """Return what the ledger of such a node has of each GPU by its key; none: there is no ledger yet."""
    return _rows(Path(LEDGER)) if Path(LEDGER).exists() else {}


def _functions(root: Path) -> dict[str, dict[str, str]]:
    """Return NVIDIA's GPUs by address: driver, override, group and serial number."""
    found = {}
    for folder in sorted((root / "sys/bus/pci/devices").iterdir()):
        kind = int((folder / "class").read_text(), 16) >> 8
        if int((folder / "vendor").read_text(), 16) != 0x10DE or kind not in GPU_CLASSES:
            continue
        override = (folder / "driver_override").read_text().strip()
        found[folder.name] = {
            "driver": _target(folder / "driver"),
            "override": "" if override == "(null)" else override,
            "group": _target(folder / "iommu_group"),
            "serial": _serial((folder / "config").read_bytes()),
        }
    return found


def _target(link: Path) -> str:
    return link.readlink().name if link.is_symlink() else ""


def _serial(space: bytes) -> str:
    """Return the Device Serial Number of an extended configuration space, as 16 digits; "": it has none."""
    at = 0x100
    while at and at + 12 <= len(space):
        (head,) = struct.unpack_from("<I", space, at)
        if head & 0xFFFF == 3:
            return f"{struct.unpack_from('<Q', space, at + 4)[0]:016x}"
        at = head >> 20
    return ""


def _rows(ledger: Path) -> dict[str, dict[str, Any]]:
    connection = sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=rw", uri=True)
    try:
        return {key: json.loads(text) for key, text in connection.execute("SELECT key, document FROM gpu")}
    finally:
        connection.close()


def _returns(ledger: Path) -> dict[str, int]:
    """Return by key how often each GPU became free, by the ledger's history."""
    connection = sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=rw", uri=True)
    found: dict[str, int] = {}
    try:
        for key, text in connection.execute("SELECT key, document FROM history"):
            entry = json.loads(text)
            if entry["row"]["state"] in CLEAN and entry["before"] not in CLEAN:
                found[key] = found.get(key, 0) + 1
    finally:
        connection.close()
    return found


def _specs(folder: Path) -> dict[str, list[str]]:
    """Return the nodes of each device, by its qualified name."""
    found = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        document = json.loads(path.read_text())
        for one in document["devices"]:
            found[f"{document['kind']}={one['name']}"] = [
                node["path"] for node in one["containerEdits"].get("deviceNodes", [])
            ]
    return found


def _openers(nodes: str, pids: Collection[int] | None) -> dict[str, set[int]]:
    """Return who has each node of a group open."""
    found: dict[str, set[int]] = {}
    for pid in pids if pids is not None else [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]:
        try:
            places = [str(handle.readlink()) for handle in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it ended, or one was closed meanwhile: the next look sees it
            continue
        for place in places:
            folder, _, name = place.rpartition("/")
            if folder == nodes and name.isdecimal():
                found.setdefault(name, set()).add(pid)
    return found


def _row_of(function: Mapping[str, str], rows: Mapping[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of the ledger that are a function's: by the digits of its serial number."""
    return [(key, row) for key, row in rows.items() if _digits(function["serial"]) in _digits(key)]


def _digits(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter in "0123456789abcdef")


def _of_functions(functions: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for address, one in functions.items():
        if not one["driver"]:
            yield f"{address} has no owner: it is bound to no driver"
        if one["override"] not in ("", one["driver"]):
            yield f"{address} has the stale override {one['override']} on {one['driver']}"


def _of_ledger(functions: Mapping[str, Mapping[str, str]], rows: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    holders: dict[str, str] = {}
    for address, one in functions.items():
        mine = _row_of(one, rows)
        if len(mine) != 1:
            yield f"{address} has {len(mine)} rows in the ledger"
    for key, row in rows.items():
        claims = row.get("claims", ())
        if row["state"] == "Held" and len({(claim["device"], claim["resource"]) for claim in claims}) != 1:
            yield f"{key} is held by {len(claims)} devices"
        for claim in claims:
            if holders.setdefault(claim["device"], key) != key:
                yield f"{claim['device']} is of {key} and of {holders[claim['device']]}"


def _of_specs(
    functions: Mapping[str, Mapping[str, str]],
    rows: Mapping[str, dict[str, Any]],
    specs: Mapping[str, list[str]],
    nodes: str,
) -> Iterator[str]:
    named = {
        f"{claim['resource']}={claim['device']}"
        for row in rows.values()
        if row["state"] == "Held"
        for claim in row["claims"]
    }
    yield from (f"{name} is shown, and the ledger gave it nobody" for name in sorted(specs.keys() - named))
    yield from (f"{name} is held, and no spec shows it" for name in sorted(named - specs.keys()))
    held = {one["group"] for one in functions.values() if any(row["state"] == "Held" for _, row in _row_of(one, rows))}
    for name, paths in specs.items():
        shown = {name for path in paths if (name := path.rpartition("/")[2]).isdecimal()}
        if not shown or not shown <= held:
            yield f"{name} shows {paths} below {nodes}, and held are the groups {sorted(held)}"


def _of_nodes(
    functions: Mapping[str, Mapping[str, str]],
    rows: Mapping[str, dict[str, Any]],
    openers: Mapping[str, set[int]],
    nodes: str,
    agent: int,
) -> Iterator[str]:
    for address, one in functions.items():
        has = openers.get(one["group"], set())
        if len(has) > 1:
            yield f"{nodes}/{one['group']} of {address} is open in {sorted(has)}"
        for key, row in _row_of(one, rows):
            state = row["state"]
            if state == "Held" and agent in has:
                yield f"{key} is held, and the agent keeps {nodes}/{one['group']} from its tenant"
            if state in CLEAN and agent and has != {agent}:
                yield f"{key} is {state}, and {nodes}/{one['group']} is open in {sorted(has) or 'nobody'}"
            if state not in WITH_TENANT and has - {agent}:
                yield f"{key} is {state}, and {sorted(has)} has {nodes}/{one['group']}"


def _of_board(
    functions: Mapping[str, Mapping[str, str]],
    rows: Mapping[str, dict[str, Any]],
    board: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    for address, said in board.items():
        for key, row in _row_of(functions[address], rows):
            if row["state"] in CLEAN and not said["is_clean"]:
                yield f"{key} is {row['state']}, and the board has a tenant's bytes in {address}"
            if row["state"] not in WITH_TENANT and said["is_used"]:
                yield f"{key} is {row['state']}, and a machine has {address}"


def _of_resets(
    functions: Mapping[str, Mapping[str, str]],
    rows: Mapping[str, dict[str, Any]],
    returns: Mapping[str, int],
    board: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Hold the history against what reached the hardware: a GPU comes free by a reset of its bus each time."""
    for address, said in board.items():
        for key, _ in _row_of(functions[address], rows):
            for how in ("bus", "flr"):
                if said.get(how, returns.get(key, 0)) < returns.get(key, 0):
                    yield f"{key} became free {returns[key]} times, and {address} saw {said[how]} resets by {how}"
