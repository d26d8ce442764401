"""Feeds hostile documents to a door and tells what came of it.

A door is a row: its valid specimens, what may be put into them, how a document is fed, and which exceptions are a
refusal. Anything else that comes out is a finding, and so is more than 2 s of processor time and any effect on the
host outside the door's own folder: Python's audit events name every file that is opened for writing, moved, removed or
made, and every program that is started (`Host`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import random
import re
import signal
import sys
import time
import traceback
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fuzz import hostile, specimen

HANG_S: Final = 2.0
"""Processor time that one document may take."""
_LOST_S: Final = 20.0
"""Wall time after which whatever a document waits for does not come."""
_FRAMES: Final = 2

ANY: Final = "*"

Feed = Callable[[bytes], Awaitable[None]]
Open = Callable[[Path], AbstractAsyncContextManager[Feed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One way into the program."""

    name: str
    opened: Open
    """Makes the door ready in a folder of its own; the feed passes one document, raises a refusal, or is at fault."""
    specimens: tuple[tuple[str, Any], ...] = ()
    """Valid documents, by name."""
    encode: specimen.Encode = specimen.as_json
    values: tuple[hostile.Hostile, ...] = hostile.JSON_VALUES
    documents: bool = True
    """Whether whole documents that are none are fed too."""
    binary: tuple[tuple[str, bytes], ...] = ()
    """Valid documents of bytes: they are cut short at every place, and each word is replaced."""
    refusals: tuple[type[BaseException], ...]
    programs: tuple[str, ...] = ()
    """Programs that the door itself may start; `ANY`: it starts what the operator names."""
    refuses_specimens: bool = False
    """Whether a specimen may be refused: it names what is not there."""
    every: int = 1
    """Of values that another door has at each place of the same document, every so manieth place; YAML's own at all."""
    sample: int = 90
    """Cases of the quick ring, beside the specimens themselves."""


@dataclass(frozen=True, slots=True)
class Case:
    """One document."""

    name: str
    make: Callable[[], bytes]
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What should not have happened."""

    case: str
    what: str


class Hang(BaseException):
    """More processor time than a document is worth; no `except Exception` may swallow it."""


class Host:
    """Watches what this process does to files and which programs it starts, and prevents it. One for a process's life.

    `sys.addaudithook` cannot be undone, so one hook is added and says nothing while nobody watches.
    """

    def __init__(self) -> None:
        self._allowed: tuple[str, ...] | None = None
        self._programs: tuple[str, ...] = ()
        self.effects: list[str] = []
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def watched(self, folder: Path, programs: tuple[str, ...] = ()) -> Iterator[None]:
        """Tell of every effect outside a folder, and of other programs, for the length of a block."""
        self._allowed, self._programs = (f"{os.path.realpath(folder)}/",), programs
        self.effects.clear()
        try:
            yield
        finally:
            self._allowed = None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._allowed is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and isinstance(flags, int) and flags & _WRITES:
                self._judge(event, path)
        elif event in _MOVES:
            for path in arguments[: _MOVES[event]]:
                self._judge(event, path)
        elif event == "os.symlink":
            self._judge(event, arguments[1])
        elif event in _STARTS and not {os.fsdecode(arguments[0]), ANY} & set(self._programs):
            self._prevent(f"{event} {arguments[:2]!r:.200}")

    def _judge(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        text = os.fsdecode(path)
        if not text.startswith("/") or text == os.devnull or text.startswith("/proc/self/"):
            return  # below a descriptor that was opened before, or nothing at all
        allowed = self._allowed or ()
        if not f"{os.path.realpath(text)}/".startswith(allowed):
            self._prevent(f"{event} {text:.200}")

    def _prevent(self, effect: str) -> None:
        """Note an effect and keep it from happening: an audit hook that raises ends the call."""
        self.effects.append(effect)
        raise PermissionError(errno.EPERM, "kept from the host")


_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MOVES: Final = {
    "os.remove": 1,
    "os.rename": 2,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.truncate": 1,
    "os.utime": 1,
    "os.setxattr": 1,
    "os.link": 2,
    "sqlite3.connect": 1,
}
_STARTS: Final = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system"})
HOST: Final = Host()


def cases(door: Door) -> Iterator[Case]:
    """Yield the complete product: every value at every place, every hostile key in every map, no-documents."""
    yield from _whole(door)
    for title, document in door.specimens:
        for place, path in enumerate(specimen.paths(document)):
            for number, one in enumerate(door.values):
                if one in hostile.YAML or (place + number) % door.every == 0:
                    yield _case(door, title, document, path, one)
        for path in specimen.keys(document):
            for one in hostile.TEXTS:
                yield _key_case(door, title, document, path, str(one.value), one.name)


def _whole(door: Door) -> Iterator[Case]:
    found = [(f"{title}: {name}", data) for title, valid in door.binary for name, data in specimen.damaged(valid)]
    if door.documents:
        found += [(f"document: {name}", data) for name, data in hostile.DOCUMENTS.items()]
    for name, data in found:
        yield Case(name, lambda data=data: data)  # type: ignore[misc]
    if door.documents:
        for name, data in hostile.LARGE_DOCUMENTS.items():
            yield Case(f"document: {name}", lambda data=data: data, is_large=True)  # type: ignore[misc]


def _case(door: Door, title: str, document: Any, path: specimen.Path, one: hostile.Hostile) -> Case:
    def make() -> bytes:
        return specimen.encoded(document, path, one.value, door.encode)

    return Case(f"{title}: {specimen.label(path)} = {one.name}", make, one.is_large)


def _key_case(door: Door, title: str, document: Any, path: specimen.Path, key: str, name: str) -> Case:
    def make() -> bytes:
        return door.encode(specimen.with_key(document, path, key))

    return Case(f"{title}: key {name} in {specimen.label(path)}", make)


def complete(door: Door) -> list[Case]:
    """Return the product, but of each large value a few places: they cost 100 times the others and are read alike."""
    every = list(cases(door))
    random.Random(door.name).shuffle(every)
    taken: dict[str, int] = {}
    chosen = []
    for one in every:
        value = one.name.rpartition(" = ")[2]
        if one.is_large:
            taken[value] = taken.get(value, 0) + 1
        if taken.get(value, 0) <= _LARGE_PLACES:
            chosen.append(one)
    return chosen


_LARGE_PLACES: Final = 4


def sampled(door: Door) -> list[Case]:
    """Choose cases: each value and each place at least once, large values once in all; the same at every run."""
    every = list(cases(door))
    choice = random.Random(door.name)
    choice.shuffle(every)
    chosen: dict[str, Case] = {}
    places: set[str] = set()
    values: set[str] = set()
    large = 0
    for one in every:
        place, _, value = one.name.partition(" = ")
        is_new = place not in places or value not in values
        if one.is_large:
            large += 1
            is_new = large <= _LARGE_SAMPLE
        if is_new and len(chosen) < door.sample:
            chosen[one.name] = one
            places.add(place)
            values.add(value)
    return list(chosen.values())


_LARGE_SAMPLE: Final = 3


async def fuzz(door: Door, chosen: Sequence[Case], folder: Path) -> list[Finding]:
    """Feed the specimens, which must pass, then the cases; returns what should not have happened."""
    async with door.opened(folder) as feed:
        with _aside():
            return await _fed(door, feed, chosen, folder)


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Keep the collector off what other tests left: it is seconds of work after a hundred doors."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _fed(door: Door, feed: Feed, chosen: Sequence[Case], folder: Path) -> list[Finding]:
    for _, document in door.specimens:
        # A specimen that is refused proves nothing, where it could pass.
        with contextlib.suppress(*(door.refusals if door.refuses_specimens else ())):
            await feed(door.encode(document))
    for _, data in door.binary:
        await feed(data)
    return [found for case in chosen async for found in _try(door, feed, case, folder)]


async def _try(door: Door, feed: Feed, case: Case, folder: Path) -> AsyncIterator[Finding]:
    try:
        data = case.make()
    except (TypeError, ValueError, AttributeError):
        return  # the format has no such value
    with HOST.watched(folder, door.programs):
        try:
            await _feed(feed, data)
        except door.refusals as error:
            if (words := _unspoken(error)) is not None:
                yield Finding(case.name, words)
        except TimeoutError:
            yield Finding(case.name, f"no answer within {_LOST_S:g} s")
        except (Exception, Hang) as error:  # noqa: BLE001 whatever a door lets out is what is looked for
            yield Finding(case.name, _brief(error))
        effects = list(dict.fromkeys(HOST.effects))
    for effect in effects[:3]:
        yield Finding(case.name, f"host effect: {effect}")


async def _feed(feed: Feed, data: bytes) -> None:
    """Feed a document, once more where it took too long: processor time grows too where others have the caches."""
    for tries_left in reversed(range(_TRIES)):
        try:
            with _limited():
                async with asyncio.timeout(_LOST_S):
                    return await feed(data)
        except (Hang, TimeoutError):
            if not tries_left:
                raise


_TRIES: Final = 3


def _unspoken(error: BaseException) -> str | None:
    """Return what is wrong with a refusal's words: too long to be read."""
    size = len(str(error))
    return f"a refusal of {size} characters: {type(error).__name__}: {str(error)[:120]!r}" if size > _WORDS else None


_WORDS: Final = 4000


_SOON_S: Final = 0.01


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise `Hang` in a block that takes too much processor time; wall time says nothing on a loaded machine."""

    def stop(_number: int, frame: types.FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "gc_callback":  # of Hypothesis: what is raised there is lost
            signal.setitimer(signal.ITIMER_PROF, _SOON_S)
            return
        if asyncio.current_task(loop) is None:  # threads take the time: what is raised here would end the loop
            loop.call_soon_threadsafe(cancel)
            return
        raise Hang(words)

    def cancel() -> None:
        if running is not None and not is_over.is_set():
            is_late.set()
            running.cancel()

    words = f"more than {HANG_S:g} s of processor time"
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    is_late, is_over = asyncio.Event(), asyncio.Event()
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    until = time.process_time() + HANG_S
    try:
        yield
        if time.process_time() > until:  # the signal went to a thread, whose work ended before the loop woke
            raise Hang(words)
    except asyncio.CancelledError:
        if running is None or not is_late.is_set():
            raise
        running.uncancel()
        raise Hang(words) from None
    finally:
        is_over.set()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _brief(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/src/" in frame.filename] or frames
    where = " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in ours[: -_FRAMES - 1 : -1])
    return f"{type(error).__name__}: {str(error)[:160]!r} at {where}"


def report(findings: Sequence[Finding]) -> str:
    """Group findings by what happened, most frequent first, with a few cases each."""
    groups: dict[str, list[str]] = {}
    for one in findings:
        groups.setdefault(re.sub(r"'.*' at ", "… at ", one.what), []).append(f"{one.case} → {one.what}")
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return "\n".join(f"{len(found)} times {what}\n    " + "\n    ".join(found[:4]) for what, found in ordered)
