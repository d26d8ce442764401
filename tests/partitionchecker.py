"""Holds switches, ledger, CDI specs and machines of a node with NVLink partitions against each other.

It imports nothing of Fairlead, and shares no rule with it: the ledger is read by SQL, active partitions from the file
that stands for the switches. It runs in a node of the system tests too, whose Python has the standard library.

Who gives and takes does not stand still meanwhile. So the ledger and the specs are read before and after the switches,
and only what both readings have counts.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WITH_TENANT = ("Held", "Releasing", "Unknown")
"""States in which a machine may still run on a GPU."""


@dataclass(kw_only=True)
class Place:
    """Where a node has these things."""

    switches: Path
    ledger: Path
    cdi: Path
    partitions: Mapping[int, tuple[int, ...]]
    """Modules by partition."""
    modules: Mapping[str, int]
    """Module by the ledger's key."""
    machines: Callable[[], Mapping[int, str]]
    """Returns whose machine has each GPU, by module."""
    is_clean: Callable[[int], bool] = lambda _: True
    """Says whether a GPU, by module, was cleaned and read since its last tenant."""


def find(place: Place) -> tuple[list[str], set[int]]:
    """Return what contradicts itself, one line each, and the partitions of several GPUs that are active for nobody."""
    before, shown, using = _rows(place), _shown(place.cdi), place.machines()
    active = _active(place.switches)
    dirty = {module for module in place.modules.values() if not place.is_clean(module)}
    still, after, now = place.machines(), _rows(place), _shown(place.cdi)
    rows = {module: row for module, row in before.items() if after.get(module) == row}
    users = {module: who for module, who in using.items() if still.get(module) == who}
    several = {one: set(place.partitions[one]) for one in active if len(place.partitions[one]) > 1}
    found = [
        *_of_switches(place, active),
        *_of_machines(rows, users, several),
        *_of_free(rows, users, several, dirty),
        *_of_specs(rows, shown & now, several),
    ]
    named = {module for module, row in rows.items() if row["state"] in WITH_TENANT}
    changing = set(before) - set(rows)
    held = named | changing | using.keys() | still.keys()
    return found, {one for one, members in several.items() if not members & held}


def _of_switches(place: Place, active: list[int]) -> Iterator[str]:
    for at, one in enumerate(active):
        for other in active[:at]:
            if both := set(place.partitions[one]) & set(place.partitions[other]):
                yield f"GPUs {sorted(both)} are in the active partitions {other} and {one}"


def _of_machines(
    rows: Mapping[int, dict[str, Any]], users: Mapping[int, str], several: Mapping[int, set[int]]
) -> Iterator[str]:
    for module, who in users.items():
        if module not in rows:
            continue
        row = rows[module]
        if row["state"] not in WITH_TENANT:
            yield f"GPU {module} is {row['state']}, and {who} has it"
        own = {frozenset(slot_modules(claim["device"])) for claim in row.get("claims", ())}
        for one, members in several.items():
            if module in members and own and members not in own:
                yield f"{who} has GPU {module} of {sorted(map(sorted, own))} in partition {one} of {sorted(members)}"


def _of_free(
    rows: Mapping[int, dict[str, Any]],
    users: Mapping[int, str],
    several: Mapping[int, set[int]],
    dirty: set[int],
) -> Iterator[str]:
    for module, row in rows.items():
        if row["state"] != "Free":
            continue
        for one, members in several.items():
            if module in members:
                yield f"GPU {module} is free in the active partition {one}"
        if module in dirty:
            yield f"GPU {module} is free, and was not cleaned and read since its last tenant"
        if module in users:
            yield f"GPU {module} is free, and {users[module]} has it"


def _of_specs(rows: Mapping[int, dict[str, Any]], shown: set[str], several: Mapping[int, set[int]]) -> Iterator[str]:
    for device in shown:
        modules = set(slot_modules(device))
        if not modules <= rows.keys():
            continue
        for module in modules:
            claims = [claim["device"] for claim in rows[module].get("claims", ())]
            if rows[module]["state"] != "Held" or device not in claims:
                yield f"{device} is shown, and GPU {module} is {rows[module]['state']} for {claims}"
        if len(modules) > 1 and modules not in several.values():
            yield f"{device} is shown without its partition; active: {sorted(several)}"


def slot_modules(device: str) -> tuple[int, ...]:
    """Return the modules of a slot's id: x4-1.2.3.4."""
    return tuple(int(one) for one in device.partition("-")[2].split(".") if one)


def _active(switches: Path) -> list[int]:
    try:
        return [int(one) for one in json.loads(switches.read_text())]
    except FileNotFoundError:
        return []


def _rows(place: Place) -> dict[int, dict[str, Any]]:
    """Return what the ledger has of each GPU, by module."""
    if not place.ledger.exists():
        return {}
    connection = sqlite3.connect(f"{place.ledger.absolute().as_uri()}?mode=rw", uri=True, timeout=20)
    try:
        found = connection.execute("SELECT key, document FROM gpu").fetchall()
    except sqlite3.OperationalError:  # it is being made
        return {}
    finally:
        connection.close()
    return {place.modules[key]: json.loads(text) for key, text in found if key in place.modules}


def keys_of(ledger: str) -> list[str]:
    """Return the keys of all GPUs that a ledger has."""
    connection = sqlite3.connect(f"{Path(ledger).absolute().as_uri()}?mode=rw", uri=True, timeout=20)
    try:
        return [key for (key,) in connection.execute("SELECT key FROM gpu ORDER BY key")]
    finally:
        connection.close()


def _shown(folder: Path) -> set[str]:
    """Return the ids of all devices in CDI specs."""
    found: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        try:
            found |= {one["name"] for one in json.loads(path.read_text())["devices"]}
        except FileNotFoundError:  # withdrawn since it was listed
            continue
    return found


@dataclass
class Watch:
    """Looks again and again, in a thread of its own, until it is closed."""

    place: Place
    limit_s: float = 60.0
    """How long a partition may be active for nobody."""
    gap_s: float = 0.01
    violations: list[str] = field(default_factory=list)
    looks: int = 0
    longest_s: float = 0.0
    """For which a partition was active for nobody."""
    _since: dict[int, float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self.gap_s):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the edge of the thread: a checker that ended would see nothing
                self._add(f"the checker itself: {error!r}")
                return

    def look(self) -> None:
        """Look once."""
        found, idle = find(self.place)
        self.looks += 1
        for violation in found:
            self._add(violation)
        now = time.monotonic()
        self._since = {one: self._since.get(one, now) for one in idle}
        for one, begun in self._since.items():
            self.longest_s = max(self.longest_s, now - begun)
            if now - begun > self.limit_s:
                self._add(f"partition {one} is active for nobody, for {self.limit_s:g} s")

    def _add(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)
