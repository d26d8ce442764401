"""Draws the way of each device from the silicon to the process: one row a device, one column a layer. Pure.

Everything in it was recorded by the layer that it is drawn under; what a layer did not record is drawn as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fairlead.frozen import frozen
from fairlead.model import replica
from fairlead.plan.trace import Record
from fairlead.serve.console.draw import words
from fairlead.serve.v1.containers.traceview import EntryView, TraceView

_NODE: Final = re.compile(r"(?P<path>\S+) \((?P<major>\d+):(?P<minor>\d+)\)")
_OPENED: Final = frozenset({"OK", "ENXIO"})
"""ENXIO: the kernel let the process through, and no driver stands behind the node, as with simulated silicon."""
_MOST: Final = 16
"""Devices that are drawn; more are counted."""
COLUMNS: Final = (
    ("found", "Board", "the GPU on its bus"),
    ("allocated", "Device plugin", "what Allocate answered"),
    ("edits", "CDI", "what goes into the container"),
    ("isolated", "Kernel", "device rules, read back"),
    ("started", "Process", "what your program can open"),
)


@frozen
class Stop:
    """One layer in one row."""

    layer: str
    main: str
    detail: str
    state: str
    """done, missing, ahead, or private: the machine's record, which is not the caller's to read."""


@frozen
class Row:
    """The way of one device."""

    device: str
    stops: tuple[Stop, ...]


@frozen
class Fence:
    """A device that is not the container's, and what the kernel says to it."""

    number: str
    answer: str


@frozen
class Head:
    """One layer, over all rows."""

    title: str
    about: str
    state: str
    at: str


@frozen
class Picture:
    """The whole drawing."""

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    more: int
    shared: tuple[str, ...]
    """Device nodes that go with every device."""
    fences: tuple[Fence, ...]
    leaks: tuple[Fence, ...]
    """Devices that are not the container's and were opened all the same."""
    notes: tuple[str, ...]


def picture(trace: TraceView, granted: Mapping[str, tuple[str, ...]], *, sees_node: bool = True) -> Picture | None:
    """Return the drawing; None: the container asks for no devices.

    Args: granted: ids of its devices by resource.   sees_node: whether records of the node may be read.
    """
    entries = {one.stage: one for one in trace.entries if one.stage}
    if "allocated" not in entries:
        return None
    facts = {key: _facts(entries.get(key)) for key, _, _ in COLUMNS}
    names = _strings(_mapping(facts["allocated"].get("answer")).get("cdi_devices"))
    devices = [one for ids in granted.values() for one in ids] or [one.partition("=")[2] for one in names]
    nodes = [found for one in _strings(facts["edits"].get("device_nodes")) if (found := _NODE.fullmatch(one))]
    opens = {str(path): str(answer) for path, answer in _mapping(facts["isolated"].get("opens")).items()}
    silicon = {str(one.get("uuid")): one for one in _mappings(facts["found"].get("gpus"))}
    own = [node for node in nodes if re.fullmatch(r"/dev/nvidia\d+", node["path"])]
    paired = dict(zip(devices, own, strict=True)) if len(own) == len(devices) else {}
    states = {key: _state(entries.get(key)) for key, _, _ in COLUMNS}
    if not sees_node and states["found"] != "done":
        states["found"] = "private"
    told = _Recorded(names=names, paired=paired, silicon=silicon, opens=opens, states=states)
    foreign = [Fence(number=path, answer=answer) for path, answer in opens.items() if not path.startswith("/")]
    return Picture(
        heads=tuple(
            Head(title=title, about=about, state=states[key], at=_at(entries.get(key))) for key, title, about in COLUMNS
        ),
        rows=tuple(Row(device=one, stops=tuple(told.stops(one))) for one in devices[:_MOST]),
        more=max(0, len(devices) - _MOST),
        shared=tuple(node["path"] for node in nodes if node not in paired.values()),
        fences=tuple(one for one in foreign if one.answer not in _OPENED),
        leaks=tuple(one for one in foreign if one.answer in _OPENED),
        notes=tuple(_notes(facts)),
    )


@frozen
class _Recorded:
    """What the layers recorded, by device."""

    names: tuple[str, ...]
    paired: Mapping[str, re.Match[str]]
    silicon: Mapping[str, Mapping[str, Any]]
    opens: Mapping[str, str]
    states: Mapping[str, str]

    def stops(self, device: str) -> Iterable[Stop]:
        """Yield the stops of one device, in the order of the columns."""
        origin = replica.origin(device)
        gpu = self.silicon.get(origin)
        index = f"GPU {gpu.get('index')}" if gpu else words.short(origin, 12)
        kept = "the machine's record" if self.states["found"] == "private" else "part of a GPU"
        yield self._stop("found", index, str(gpu.get("pci", "")) if gpu else kept)
        name = next((one for one in self.names if one.partition("=")[2] == device), "")
        kind = name.partition("=")[0]
        yield self._stop(
            "allocated", kind or words.short(device), f"={words.short(name.partition('=')[2])}" if name else ""
        )
        node = self.paired.get(device)
        yield self._stop(
            "edits", node["path"] if node else "device nodes", f"{node['major']}:{node['minor']}" if node else ""
        )
        answer = self.opens.get(node["path"], "") if node else ""
        rule = f"c {node['major']}:{node['minor']} rw" if node else "rules read back"
        yield self._stop("isolated", rule, f"open(): {_said(answer)}" if answer else "")
        yield self._stop("started", "can use it" if answer in _OPENED else "", node["path"] if node and answer else "")

    def _stop(self, key: str, main: str, detail: str) -> Stop:
        state = self.states[key]
        title = next(title for own, title, _ in COLUMNS if own == key)
        if state in {"done", "private"}:
            return Stop(layer=title, main=main, detail=detail, state=state)
        text = "no record" if state == "missing" else "not yet"
        return Stop(layer=title, main=text, detail="", state=state)


def _said(answer: str) -> str:
    return "let through" if answer == "ENXIO" else answer


def _notes(facts: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    mounts, env = _strings(facts["edits"].get("mounts")), _strings(facts["edits"].get("env"))
    if mounts:
        yield f"{len(mounts)} files of the driver are mounted with it"
    if env:
        yield f"set in its environment: {', '.join(env[:4])}"
    if "ENXIO" in map(str, _mapping(facts["isolated"].get("opens")).values()):
        yield "simulated silicon: the kernel lets the process through, and no driver answers (ENXIO)"


def _at(entry: EntryView | None) -> str:
    if entry is None or entry.offset_s is None:
        return ""
    return "before it came" if entry.offset_s < 0 else f"+{words.span(entry.offset_s)}"


def _state(entry: EntryView | None) -> str:
    if entry is None:
        return "ahead"
    return {Record.RECORDED: "done", Record.MISSING: "missing", Record.AHEAD: "ahead"}[entry.record]


def _facts(entry: EntryView | None) -> Mapping[str, Any]:
    return {} if entry is None or entry.step is None else entry.step.facts


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(one for one in value if isinstance(one, Mapping)) if isinstance(value, list | tuple) else ()


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
