"""`fairlead trace`: prints a container's way from the silicon to the process as a tree.

One entry a layer: when (seconds from the pod's first step), how long it took, who did it, what it said; below it the
facts a person wants, drawn from what the layer recorded. A fact of a kind that is not known here is shown as it is. An
entry without a record says so.
"""

from __future__ import annotations

import errno
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container import explain
from fairlead.cli.core import client as api
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.model.container import isolation
from fairlead.plan.pod import personwords
from fairlead.plan.sandbox import machinestart
from fairlead.plan.trace import Record
from fairlead.serve.v1.containers.traceview import EntryView, TraceView
from fairlead.serve.v1.containers.view import ContainerView

Facts = Mapping[str, Any]
_LINES: Final = 12
_LISTED: Final = 8
_INDENT: Final = 35
_NARROW_INDENT: Final = 9
_ROOMY: Final = 120
"""Width from which facts are indented below the message of their step; narrower terminals indent less."""
_SHORT: Final = (12, 17, 22, 27)
"""Lengths at which a GPU UUID may be cut: before its second to fifth dash."""


@click.command()
@options.container_argument()
@options.namespace_option
@options.json_option
@click.option("-c", "--container", default="", help="only this container of a group  [default: all]")
@click.option("--no-output", is_flag=True, help="leave the process's own output out")
@options.pass_client
def trace(client: Client, *, name: str, namespace: str, container: str, form: str, no_output: bool) -> None:
    """Show every step from the silicon to the process."""
    found = client.trace(name, namespace, container=container)
    if form != "text":
        output.show_value(found, form=form)
        return
    shown = client.container(name, namespace)
    plaintext.echo(_headline(shown), bold=True)
    for line in explain.start_lines(shown):
        plaintext.echo(f"│ {line}")
    wrote = [] if no_output else first_lines(client, name, namespace, container)
    for line in tree_lines(found, wrote, width=output.terminal_columns()):
        plaintext.echo(line)
    if client.cluster and any(entry.record is Record.MISSING for entry in found.entries):
        plaintext.echo(_FORGOTTEN, err=True)


_FORGOTTEN: Final = (
    "steps are events, which an API server keeps for an hour; those of a node are recorded by the agent, for pods that "
    "ask for its devices"
)


def _headline(shown: ContainerView) -> str:
    asked = ", ".join(f"{count} x {resource}" for resource, count in shown.resources.items())
    sandbox = f"isolation {shown.isolation}" if shown.isolation != isolation.NONE else ""
    return " · ".join(part for part in (shown.name, shown.image, asked, sandbox, _state(shown)) if part)


def _state(shown: ContainerView) -> str:
    """Return state and exit code; what waits for its next start after a run without error has not crashed."""
    if shown.state != "crashed":
        return shown.state + (f" ({shown.exit_code})" if shown.exit_code is not None else "")
    codes = [one.last_exit_code for one in shown.containers if one.last_exit_code is not None]
    failed = next((code for code in codes if code), None)
    return "restarting (0)" if codes and failed is None else shown.state + (f" ({failed})" if failed else "")


def first_lines(client: Client, name: str, namespace: str, container: str = "") -> list[str]:
    """Return the first lines the process wrote; none before it has started."""
    wanted = b""
    params = {"namespace": namespace, "container": container or None}
    try:
        with client.stream("GET", f"{api.container_path(name)}/logs", params=params) as pieces:
            for piece in pieces:
                wanted += piece
                if wanted.count(b"\n") > _LINES:
                    break
    except errors.Conflict:
        return []
    lines = wanted.decode(errors="replace").splitlines()
    return [*lines[:_LINES], "…"] if len(lines) > _LINES else lines


def tree_lines(found: TraceView, wrote: Sequence[str] = (), *, width: int | None = None) -> Iterator[str]:
    """Yield the trace as lines.

    Args:    wrote: first lines of the process's output, shown below the last entry.
             width: columns of the terminal, in which lines are broken between words; None: they are not.
    """
    indent = _INDENT if width is None or width >= _ROOMY else _NARROW_INDENT
    groups = _names(found)
    short = _short_names(found)
    last = len(found.entries) - 1
    for index, entry in enumerate(found.entries):
        is_last = index == last and not wrote
        stem = "   " if is_last else "│  "
        rest = f"{stem}{' ' * indent}"
        yield from _broken(f"{'└─' if is_last else '├─'} {_line(entry, groups)}", rest, width)
        for fact in _facts(entry):
            text = _shortened(fact, short)
            own = text[: len(text) - len(text.lstrip())]
            yield from _broken(f"{rest}{text}".rstrip(), f"{rest}{own}  ", width)
    if wrote:
        yield f"└─ {'':9} {'':10} {'process':<13} first lines of its output"
        for line in wrote:
            # The process's own words, which no break of ours may change.
            yield f"   {' ' * indent}{line}".rstrip()


def _broken(line: str, rest: str, width: int | None) -> list[str]:
    """Return a line as lines no wider than the terminal, broken between words; `rest` begins all but the first."""
    if width is None or len(line) <= width:
        return [line]
    lead = line[: len(line) - len(line.lstrip("│├└─ "))]
    return textwrap.wrap(
        line[len(lead) :],
        width,
        initial_indent=lead,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _names(found: TraceView) -> bool:
    """Return whether steps of more than one container are in it, so that each line must name its own."""
    names = {entry.step.facts.get("container") for entry in found.entries if entry.step is not None}
    return len(names - {None}) > 1


def _short_names(shown: TraceView) -> dict[str, str]:
    """Return short names of the GPUs that the silicon's step lists, by uuid: `GPU 3 (GPU-0f04cc99)`.

    The shortest of the lengths `_SHORT` that makes them differ, else the whole uuid.
    """
    lists = [entry.step.facts.get("gpus") for entry in shown.entries if entry.step is not None]
    rows = [gpu for found in lists if isinstance(found, list | tuple) for gpu in found]
    known = {
        str(gpu["uuid"]): gpu["index"] for gpu in rows if isinstance(gpu, Mapping) and {"uuid", "index"} <= set(gpu)
    }
    size = next((end for end in _SHORT if len({uuid[:end] for uuid in known}) == len(known)), None)
    return {uuid: f"GPU {index} ({uuid[:size]})" for uuid, index in known.items()}


def _shortened(fact: str, names: Mapping[str, str]) -> str:
    # A uuid in a qualified CDI name or a variable (`=UUID`) stays whole, since users copy it; so does the whole fact.
    if any(f"={uuid}" in fact for uuid in names):
        return fact
    for uuid, name in names.items():
        fact = fact.replace(uuid, name)
    return fact


def _line(entry: EntryView, shows_container: bool) -> str:
    step = entry.step
    if step is None:
        mark = entry.record.value if entry.record is Record.MISSING else f"({entry.record.value})"
        return f"{'':9} {'':10} {entry.layer:<13} {entry.title}: {mark}"
    offset = _offset(entry.offset_s)
    took = output.moment(step.duration_s) if step.duration_s is not None else ""
    name = f"[{step.facts['container']}] " if shows_container and "container" in step.facts else ""
    times = f" (x{entry.count})" if entry.count > 1 else ""
    warning = "! " if step.is_warning else ""
    teller = f" (says an event of {step.teller})" if step.teller else ""
    return f"{offset:>9} {took:>10} {entry.layer:<13} {warning}{name}{personwords.message(step.message)}{teller}{times}"


def _offset(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0:
        return f"-{output.span(-seconds)}"
    return f"+{seconds:.3f}s" if seconds < 100 else f"+{output.span(seconds)}"


def _facts(entry: EntryView) -> Iterator[str]:
    if entry.step is None:
        return
    draw = _DRAWN.get(entry.step.reason, _plain)
    yield from draw(entry.step.facts)


def _listed(values: object, *, limit: int = _LISTED) -> str:
    """Return a list in one line, the rest of a long one as its number."""
    if not isinstance(values, list | tuple):
        return str(values)
    items = [_short(item) for item in values[:limit]]
    rest = len(values) - limit
    return ", ".join(items) + (f", and {rest} more" if rest > 0 else "")


def _short(item: object) -> str:
    if isinstance(item, Mapping):
        return " ".join(f"{key}={value}" for key, value in item.items() if value not in (None, "", [], ()))
    return str(item)


def _plain(facts: Facts) -> Iterator[str]:
    """Draw facts of a kind that is not known here."""
    for key, value in facts.items():
        if key != "container" and value not in (None, "", [], {}):
            if isinstance(value, list) and value and isinstance(value[0], Mapping):
                yield f"{key}:"
                yield from (f"  {_short(item)}" for item in value)
            else:
                yield f"{key}: {_short(value) if isinstance(value, Mapping) else _listed(value)}"


def _aligned(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = [[key, value] for key, value in pairs if value]
    yield from output.lines_of(rows, gap="  ")


def _found(facts: Facts) -> Iterator[str]:
    models = facts.get("models", {})
    drivers = facts.get("drivers", {})
    cuda = facts.get("cuda", {})
    pairs = [("GPUs", ", ".join(f"{count} x {name}" for name, count in models.items()))]
    pairs += [
        ("driver", f"{vendor} {version}" + (f", CUDA up to {cuda[vendor]}" if vendor in cuda else ""))
        for vendor, version in drivers.items()
    ]
    yield from _aligned(pairs)


def _advertised(facts: Facts) -> Iterator[str]:
    yield from _aligned((("plugin", str(facts.get("socket", ""))), ("kubelet", str(facts.get("kubelet", "")))))


_DECISION: Final = frozenset({"nodes", "fitting", "best", "refused"})


def _scheduled(facts: Facts) -> Iterator[str]:
    yield from output.lines_of(explain.decision_rows(facts), gap="  ")
    left = {key: value for key, value in facts.items() if key not in _DECISION}
    rest = facts.get("fitting", 0) - len(facts.get("best", ()))
    yield from _plain({**left, **({"nodes that fit as well": rest} if rest > 0 else {})})


def _chosen(facts: Facts) -> Iterator[str]:
    free = facts.get("available", [])
    yield from _aligned(
        (
            ("asked", f"{facts.get('asked', '?')} of {facts.get('resource', '?')}, {len(free)} free"),
            ("preferred", _listed(facts.get("preferred", []))),
            ("chosen", _listed(facts.get("chosen", []))),
        )
    )


def _allocated(facts: Facts) -> Iterator[str]:
    answer = facts.get("answer", {})
    yield from _aligned(
        (
            ("CDI devices", _listed(answer.get("cdi_devices", []))),
            ("env", _listed([f"{key}={value}" for key, value in answer.get("envs", {}).items()])),
            ("mounts", _listed(answer.get("mounts", []))),
            ("device nodes", _listed(answer.get("devices", []))),
            ("annotations", _listed([f"{key}={value}" for key, value in answer.get("annotations", {}).items()])),
        )
    )


def _edits(facts: Facts) -> Iterator[str]:
    yield from _aligned(
        (
            ("devices", _listed(facts.get("names", []))),
            ("specs", _listed(facts.get("specs", []))),
            ("device nodes", _listed(facts.get("device_nodes", []), limit=12)),
            ("mounts", _listed(facts.get("mounts", []), limit=4)),
            ("env", _listed(facts.get("env", []))),
        )
    )


def _isolation(facts: Facts) -> Iterator[str]:
    nodes = {node["path"]: f"c {node['major']}:{node['minor']}" for node in facts.get("nodes", []) if "path" in node}
    opens: Mapping[str, Any] = facts.get("opens", {})
    granted = facts.get("granted", [])
    paths = [where for where in opens if where.startswith("/")]
    rows = [[where, nodes.get(where, ""), f"{_act(where)}: {_meaning(opens[where])}"] for where in paths]
    rows += [[where, nodes[where], "in the container"] for where in granted if where in nodes and where not in opens]
    rows += [[where, "", "not in the container"] for where in granted if where not in nodes and where not in opens]
    others = [where for where in opens if not where.startswith("/")]
    by_outcome: dict[str, list[str]] = {}
    for where in others:
        by_outcome.setdefault(_meaning(opens[where]), []).append(where.removeprefix("c "))
    yield from output.lines_of([[cell or " " for cell in row] for row in rows], gap="  ")
    for outcome, numbers in by_outcome.items():
        yield f"c {', '.join(numbers)}  open: {outcome}"
    rules = facts.get("rules", [])
    if rules:
        yield f"rules in force  {_listed(rules, limit=8)}"
    for text in facts.get("unread", []):
        yield f"not read: {text}"


_MEANING: Final = {
    "OK": "works",
    "ENXIO": "ENXIO, allowed (no driver behind it: simulated, or not loaded)",
    "EPERM": "EPERM, denied by the cgroup",
    "EACCES": "EACCES, denied by the node's mode",
    "ENOENT": "ENOENT, not there",
    "ENODEV": "ENODEV, allowed (no device behind it)",
}


def _act(path: str) -> str:
    """Return what was tried of a node: a VFIO group has one opener, so it is asked whether it may be opened."""
    return "access" if path.startswith("/dev/vfio/") else "open"


def _meaning(outcome: object) -> str:
    """Return what an `open()` says in words; only what the errno itself says."""
    token = errno.errorcode.get(outcome, str(outcome)) if isinstance(outcome, int) else str(outcome)
    if token.startswith("mknod:"):
        return f"the node may not even be made ({token.removeprefix('mknod:')})"
    return _MEANING.get(token, token)


def _changed(facts: Facts) -> Iterator[str]:
    opens: Mapping[str, Any] = facts.get("opens", {})
    done = {node["path"]: node["done"] for node in facts.get("nodes", []) if "path" in node}
    rows = [[path, done.get(path, "")] for path in {**done, **opens}]
    yield from output.lines_of([[*row, f"open: {_meaning(opens[row[0]])}" if row[0] in opens else ""] for row in rows])
    for process in facts.get("ended", []):
        yield f"ended: {process.get('name')} (pid {process.get('pid')})"
    yield from (f"not read: {text}" for text in facts.get("unread", []))


def _refused(facts: Facts) -> Iterator[str]:
    yield f"refused: {facts.get('problem', {}).get('reason', '?')}"


def _ended(facts: Facts) -> Iterator[str]:
    if facts.get("ran_s") is not None:
        yield f"ran {output.moment(float(facts['ran_s']))}"


def _created(facts: Facts) -> Iterator[str]:
    limits = [f"{facts['cpu_limit']:g} CPUs"] if facts.get("cpu_limit") else []
    limits += [output.size(facts["memory_limit_bytes"])] if facts.get("memory_limit_bytes") else []
    known = {"cpu_limit", "memory_limit_bytes", "name", "pid", "container"}
    yield from _aligned((("limits", ", ".join(limits)),))
    yield from _plain({key: value for key, value in facts.items() if key not in known and value != 0})


def _nothing(_facts: Facts) -> Iterator[str]:
    return iter(())


def _machine(facts: Facts) -> Iterator[str]:
    """Draw the parts of a machine's boot, up to its agent."""
    times = machinestart.of_facts(facts)
    if times is not None and times.agent_at is not None:
        for name, begin, end in machinestart.parts(times, times.began_at, times.agent_at):
            if end > begin:
                yield f"{name} {output.moment(end - begin)}"


_DRAWN: Final[dict[str, Callable[[Facts], Iterator[str]]]] = {
    "GPUsFound": _found,
    "DevicesAdvertised": _advertised,
    "Scheduled": _scheduled,
    "FailedScheduling": _scheduled,
    "DevicesChosen": _chosen,
    "DevicesAllocated": _allocated,
    "EditsResolved": _edits,
    "IsolationRead": _isolation,
    "ContainerCreated": _created,
    "ContainerStarted": _nothing,
    "FirstOutput": _nothing,
    "MachineStarted": _machine,
    "PartitionActivated": _nothing,
    "ContainerEnded": _ended,
    "Attached": _changed,
    "Detached": _changed,
    "AttachRefused": _refused,
    "DetachRefused": _refused,
}
