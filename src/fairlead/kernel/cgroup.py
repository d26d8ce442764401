"""Reads and writes the device rules of one container's cgroups, v1 and v2.

A process is in one cgroup of the v1 devices hierarchy and in one of the v2 hierarchy, where those are mounted, and the
kernel asks both: the v1 list of grants, and every BPF program attached to the v2 cgroup or above it. So both are read,
and what is in force is what all of them allow. The v1 root allows everything and cannot be changed; it is left out.

Writing changes only cgroups that restrict anything: v1 by `devices.deny` and `devices.allow`, v2 by one program that
says what the ones attached there said, and the change, put in their place in one step. What was asked is read back: a
change that did not come into force (a parent forbids it, a wider grant remains) is an error, never a silence.
Source: Linux Documentation/admin-guide/cgroup-v1/devices.rst; cgroup-v2.rst, "Device controller"; proc_pid_cgroup(5).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel import bpf
from fairlead.model import devicerule
from fairlead.model.devicerule import DeviceRule, DeviceRules
from fairlead.wire.oci import bpfprogram as instructions
from fairlead.wire.oci import deviceprogram
from fairlead.wire.oci import devicerule as wire

_MOUNT_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_ALL_V1: Final = "a *:* rwm"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup that can hold device rules."""

    folder: Path
    version: int
    is_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The rules in force."""

    lines: tuple[str, ...]
    """In the kernel's words, or for programs in the same form."""
    rules: DeviceRules | None
    """None: not all of it could be read; `unread` says what."""
    restricting: tuple[Cgroup, ...]
    """The cgroups that deny anything."""
    unread: tuple[str, ...] = ()


def of_process(process: Path, root: Path) -> tuple[Cgroup, ...]:
    """Return the cgroups of a process in which device rules can be.

    Args:    process: its folder in /proc.   root: where /proc/self is.   Raises: OSError: there is no such process.
    """
    hierarchies = mounts(root)
    found: list[Cgroup] = []
    # A cgroup may have any name, as one that a container makes has; only a line's end is kept out by the kernel.
    text = (process / "cgroup").read_text(errors="surrogateescape")
    for line in filter(None, text.split("\n")):
        number, controllers, path = line.split(":", 2)
        key = "devices" if "devices" in controllers.split(",") else "cgroup2" if number == "0" else ""
        if key in hierarchies:
            version = 1 if key == "devices" else 2
            found.append(Cgroup(_below(hierarchies[key], path), version, is_root=path == "/"))
    return tuple(sorted(found, key=lambda cgroup: cgroup.version))


def at(path: Path, root: Path) -> tuple[Cgroup, ...]:
    """Return the cgroup of a folder of a mounted hierarchy. Raises: NotFound: it is in none that has device rules."""
    for key, (_, point) in mounts(root).items():
        if path.is_dir() and path.is_relative_to(point):
            return (Cgroup(path, 1 if key == "devices" else 2, is_root=path == point),)
    message = f"{path} is not a cgroup of the v1 devices hierarchy or of v2"
    raise errors.NotFound(message, reason="CgroupUnknown", hint="for example /sys/fs/cgroup/devices/user.slice")


def host_process(root: Path = Path("/")) -> Path | None:
    """Return the folder of the host's first process where this process lives in a container and sees it, else None.

    With the host's pids its process 1 is in another mount namespace than ours; without them process 1 is of our own.
    """
    first, own = root / "proc/1", root / "proc/self"
    try:
        is_other = (first / "ns/mnt").readlink() != (own / "ns/mnt").readlink()
    except OSError:
        return None
    return first if is_other else None


def mounts(root: Path) -> dict[str, tuple[str, Path]]:
    """Return (root inside the hierarchy, mount point) of the v1 devices hierarchy and of cgroup2, where mounted.

    From inside a container the host's own mounts are used, if they can be seen: the container's show a part only.
    """
    host = host_process(root)
    below = host / "root" if host is not None else Path("/")
    found: dict[str, tuple[str, Path]] = {}
    for line in ((host or root / "proc/self") / "mountinfo").read_text().splitlines():
        # Source: proc_pid_mountinfo(5): id parent major:minor root point options… - type source super-options
        left, _, right = line.partition(" - ")
        inside, point = (_unescape(field) for field in left.split(" ")[3:5])
        kind, _, options = right.split(" ", 2)
        place = (inside, below / point.lstrip("/"))
        if kind == "cgroup" and "devices" in options.split(","):
            found["devices"] = place
        elif kind == "cgroup2":
            found.setdefault("cgroup2", place)
    return found


def _unescape(field: str) -> str:
    return _MOUNT_ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def _below(mount: tuple[str, Path], path: str) -> Path:
    inside, point = mount
    return point / path.removeprefix(inside if inside != "/" else "").lstrip("/")


# reading


@dataclass(slots=True)
class _Found:
    """What one cgroup says."""

    lines: tuple[str, ...] = ()
    deciders: tuple[wire.Decide, ...] = ()
    unread: str = ""
    is_whole: bool = True
    """False: there is more that could not be read."""
    is_restricting: bool = False


def read(cgroups: Sequence[Cgroup]) -> Reading:
    """Read what is in force; what cannot be read is named in `unread`, and nothing is claimed of it."""
    if not cgroups:
        missing = "device rules: this machine has no device cgroup mounted"
        return Reading(lines=(), rules=None, restricting=(), unread=(missing,))
    found = [(cgroup, _read_v1(cgroup) if cgroup.version == 1 else _read_v2(cgroup)) for cgroup in cgroups]
    deciding = [one for _, one in found if one.is_restricting] or [found[0][1]]
    unread = [f"device rules: {one.unread}" for _, one in found if one.unread]
    rules = None
    if all(one.is_whole for _, one in found):
        try:
            rules = wire.derive([decide for one in deciding for decide in one.deciders])
        except errors.ProtocolError as error:
            unread.append(f"device rules: {error.message}")
    # One list of version 1 by itself is shown in the kernel's own words.
    is_derived = rules is not None and (len(deciding) > 1 or not deciding[0].lines)
    lines = rules.lines() if rules is not None and is_derived else tuple(x for one in deciding for x in one.lines)
    restricting = tuple(cgroup for cgroup, one in found if one.is_restricting)
    return Reading(lines=lines, rules=rules, restricting=restricting, unread=tuple(unread))


def _read_v1(cgroup: Cgroup) -> _Found:
    path = cgroup.folder / "devices.list"
    try:
        text = path.read_text()
    except OSError as error:
        return _Found(unread=f"{path}: {error.strerror}", is_whole=False)
    lines, grants = tuple(text.splitlines()), wire.grants(wire.parse_list(text))
    if cgroup.is_root or lines != (_ALL_V1,):
        return _Found(lines=lines, deciders=(grants,), is_restricting=not cgroup.is_root)
    hidden = f"what is denied from `{_ALL_V1}` of {cgroup.folder} (the kernel lists grants only)"
    return _Found(lines=lines, deciders=(grants,), unread=hidden)


def _read_v2(cgroup: Cgroup) -> _Found:
    try:
        programs = bpf.effective(cgroup.folder)
    except bpf.Refused as error:
        return _Found(unread=str(error), is_whole=False)
    if not all(program.instructions for program in programs):
        names = tuple(f"bpf program {program.id}" for program in programs)
        hidden = f"what {', '.join(names)} decide (the kernel does not show their instructions)"
        return _Found(lines=names, unread=hidden, is_whole=False, is_restricting=True)
    deciders = tuple(_decider(program.instructions) for program in programs)
    try:
        wire.derive(deciders)
    except errors.ProtocolError as error:
        names = tuple(f"bpf program {program.id}" for program in programs)
        return _Found(lines=names, unread=f"{', '.join(names)}: {error.message}", is_whole=False, is_restricting=True)
    return _Found(deciders=deciders, is_restricting=bool(programs))


def _decider(program: bytes) -> wire.Decide:
    return partial(instructions.decide, instructions.parse_program(program))


# writing


def change(cgroups: Sequence[Cgroup], *, deny: Iterable[DeviceRule] = (), allow: Iterable[DeviceRule] = ()) -> Reading:
    """Take access from patterns, then give some; idempotent.

    A pattern is taken as one: on cgroup v1 it must be one that the list has, or everything.
    Returns: what is in force afterwards.
    Raises:  Conflict (`RuleNotInForce`): it was written and is not so.   Unavailable: the kernel refuses, or what is in
             force cannot be read: before, and nothing was written; afterwards, and nothing is proved.
    """
    taken, given = tuple(deny), tuple(allow)
    before = read(cgroups)
    if before.rules is None:
        raise _unreadable("the rules in force cannot be read, so they are not changed", before)
    for cgroup in before.restricting or [cgroup for cgroup in cgroups if not cgroup.is_root][:1]:
        if cgroup.version == 1:
            _write_v1(cgroup.folder, taken, given)
        else:
            _write_v2(cgroup.folder, taken, given)
    after = read(cgroups)
    _assert_in_force(after, taken, given)
    return after


def _unreadable(what: str, reading: Reading) -> errors.Unavailable:
    message = f"{what}: {'; '.join(reading.unread)}"
    return errors.Unavailable(message, reason="RulesUnreadable", hint="root with CAP_BPF can read them")


def _assert_in_force(after: Reading, taken: Sequence[DeviceRule], given: Sequence[DeviceRule]) -> None:
    rules = after.rules
    if rules is None:
        raise _unreadable("rules were written and cannot be read back", after)
    for rule in given:
        if devicerule.without(rule.access, rules.access(rule.kind, rule.major, rule.minor)):
            message = f"{rule} was allowed and is still denied"
            hint = "a cgroup above the container's denies it, or the list of this kernel is full"
            raise errors.Conflict(message, reason="RuleNotInForce", hint=hint)
    for rule in taken:
        left = devicerule.common(rule.access, rules.access(rule.kind, rule.major, rule.minor))
        left = devicerule.without(left, "m")  # `*:* m` is in every runtime's rules: it lets nodes be made, not opened
        is_given_again = any(one.covers(rule) or rule.covers(one) for one in given)
        # A single number denied from everything is hidden: the kernel lists grants only.
        is_hidden = after.lines == (_ALL_V1,) and (rule.major, rule.minor) != (None, None)
        if left and not is_given_again and not is_hidden:
            message = f"{rule} was denied and is still allowed ({left})"
            hint = "a wider rule allows it: `fairlead isolate audit --repair` narrows that one"
            raise errors.Conflict(message, reason="RuleNotInForce", hint=hint)


def _write_v1(folder: Path, taken: Sequence[DeviceRule], given: Sequence[DeviceRule]) -> None:
    everything = {rule.kind for rule in taken if rule.major is rule.minor is None and rule.access == devicerule.ACCESS}
    is_all = everything == set(devicerule.KINDS)
    lines = ["a"] if is_all else [str(rule) for rule in taken]
    for name, texts in (("devices.deny", lines), ("devices.allow", [str(rule) for rule in given])):
        for text in texts:
            try:
                (folder / name).write_text(text)
            except OSError as error:
                message = f'cannot write "{text}" to {folder / name}: {error.strerror}'
                hint = "the cgroup above must allow it first, and nothing is taken as a whole from one with children"
                raise errors.Unavailable(message, reason="RuleRefused", hint=hint) from error


def _write_v2(folder: Path, taken: Sequence[DeviceRule], given: Sequence[DeviceRule]) -> None:
    try:
        own = bpf.attached(folder)
        rules = deviceprogram.decode([program.instructions for program in own.programs])
        wanted = rules.changed(deny=taken, allow=given)
        if not wanted.agrees(rules):
            bpf.replace(folder, deviceprogram.encode(wanted))
    except bpf.Refused as error:
        message = f"cannot change the device program of {folder}: {error}"
        raise errors.Unavailable(message, reason="RuleRefused", hint="root with CAP_BPF may") from error


def members(cgroups: Iterable[Cgroup]) -> frozenset[int]:
    """Return the processes in these cgroups and below them, those of root cgroups left out."""
    found: set[int] = set()
    for cgroup in cgroups:
        if not cgroup.is_root:
            for path in [cgroup.folder, *cgroup.folder.rglob("*")]:
                with contextlib.suppress(OSError):
                    found |= {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
    return frozenset(found - {0})
