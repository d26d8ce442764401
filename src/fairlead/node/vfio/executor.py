"""Carries out the plans of binding, release and reset, step by step, on this machine.

Each call scans, asks who has what open, plans, and then writes: a plan is never older than its looks. Right before the
writes of a unit that take a function from its driver, the processes are asked again. A unit whose steps end half-way
is put back as it was; what cannot be put back is named. All of it can be done again: a plan holds only what is still
to do.

A write that hangs leaves a child in the kernel (`writer`), which may have the function's lock: nothing more is written
to that function.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.kernel import openfiles
from fairlead.model.vfio import Function, Snapshot, is_vfio
from fairlead.plan.vfio import binding, resetting, unit, verdict
from fairlead.plan.vfio.step import LOOKS, Act, Step
from fairlead.silicon.vfio import attribute, discovery, holder, registers, writer

LIMITS: Final[Mapping[Act, float]] = {
    Act.OVERRIDE: 5.0,
    Act.CHOOSE_RESET: 5.0,
    Act.UNBIND: 60.0,
    Act.PROBE: 60.0,
    Act.RESET: 90.0,
}
"""Seconds that a write may take. A driver takes long to start or end a GPU, the kernel waits 60 s after a reset."""
_LOOK_S: Final = 0.05
_WITHOUT: Final = frozenset({errno.ENOENT, errno.ENODEV})
OpenWriter = Callable[[], AbstractAsyncContextManager[writer.Writer]]


@frozen
class Failure:
    """The step that failed, and why."""

    step: Step
    message: str
    is_hung: bool = False


@frozen
class Outcome:
    """What became of functions that go together."""

    functions: tuple[Function, ...]
    """As they were before."""
    done: tuple[Step, ...] = ()
    refusals: tuple[verdict.Obstacle, ...] = ()
    """Why nothing was done."""
    failure: Failure | None = None
    left: tuple[str, ...] = ()
    """What could not be put back after a failure, one line each."""

    @property
    def is_good(self) -> bool:
        """Whether it is as it was asked to be."""
        return not self.refusals and self.failure is None


class Executor:
    """Binds, releases and resets functions of one machine."""

    def __init__(
        self,
        root: Path,
        find_users: holder.FindUsers | None = None,
        *,
        dev_root: Path | None = None,
        open_writer: OpenWriter = writer.opened,
        limits: Mapping[Act, float] = LIMITS,
    ) -> None:
        """Take where things are.

        Args: root, dev_root: as `discovery.scan` has them.   find_users: looks through processes, called in a thread;
              None: those that /proc below the root shows.   open_writer: opens what writes, for one unit.
              limits: seconds by kind of write.
        """
        self._root, self._dev_root = root, dev_root
        shown = root if (root / "proc/1").exists() else Path("/")
        self._find_users = find_users or functools.partial(openfiles.find_users, root=shown)
        self._open_writer, self._limits = open_writer, limits

    async def scan(self) -> Snapshot:
        """Read the machine now."""
        return await asyncio.to_thread(discovery.scan, self._root, dev_root=self._dev_root)

    async def find_holders(
        self, functions: Sequence[Function], *, is_ours: bool = False, opens: bool = False
    ) -> verdict.Holders:
        """Return who has which function open. Args: is_ours, opens: see `holder.find_holders`."""
        return await asyncio.to_thread(holder.find_holders, functions, self._find_users, is_ours=is_ours, opens=opens)

    async def bind(self, addresses: Collection[str]) -> tuple[Outcome, ...]:
        """Bind functions to VFIO with all that goes where they go, one unit after the other; idempotent.

        Args:    addresses: of functions that are there; others are left out.
        Raises:  Unavailable: no child process can be started.
        """
        return await self._move(binding.plan_bind, addresses)

    async def release(self, addresses: Collection[str]) -> tuple[Outcome, ...]:
        """Give functions back to their vendors' drivers. Args, Raises: as `bind`."""
        return await self._move(binding.plan_release, addresses)

    async def _move(
        self,
        plan_all: Callable[[Snapshot, Collection[str], verdict.Holders], tuple[binding.UnitPlan, ...]],
        addresses: Collection[str],
    ) -> tuple[Outcome, ...]:
        async with self._open_writer() as writing:  # one child for all units: its start takes longer than its writes
            await writing.begin()
            snapshot = await self.scan()
            plans = plan_all(snapshot, addresses, await self.find_holders(_together(snapshot, addresses), opens=True))
            return tuple([await self._carry_out(plan, writing) for plan in plans])

    async def _carry_out(self, plan: binding.UnitPlan, writing: writer.Writer) -> Outcome:
        if plan.refusals or not plan.steps:
            return Outcome(functions=plan.functions, refusals=plan.refusals)
        done: list[Step] = []
        try:
            failure = await self._run(plan, writing, done)
        except BaseException:
            await self._undo(plan, None)
            raise
        left = await self._undo(plan, failure) if failure is not None else ()
        return Outcome(functions=plan.functions, done=tuple(done), failure=failure, left=left)

    async def _run(self, plan: binding.UnitPlan, writing: writer.Writer, done: list[Step]) -> Failure | None:
        """Carry out a plan, noting what is done; returns what failed."""
        taken = next((step for step in plan.steps if step.act is Act.UNBIND), None)
        if taken is not None and (message := await self._message_of_users(plan.functions)) is not None:
            return Failure(step=taken, message=message)
        # One message for the whole unit, right after that look: the writes of a unit follow each other.
        writes = itertools.takewhile(lambda step: step.act not in LOOKS, plan.steps)
        await writing.announce([(self._root / step.path, step.text) for step in writes])
        for step in plan.steps:
            if (failure := await self._do(step, writing)) is not None:
                return failure
            done.append(step)
        return None

    async def _message_of_users(self, functions: Sequence[Function]) -> str | None:
        holders = await self.find_holders(functions, opens=True)
        found = [obstacle for one in functions for obstacle in verdict.list_held(one, holders)]
        return found[0].sentence if found else None

    async def _do(self, step: Step, writing: writer.Writer) -> Failure | None:
        """Carry out one step; returns why it failed."""
        telemetry.crash_point(f"vfio.{step.act.value}-begun")
        failure = await self._act(step, writing)
        telemetry.crash_point(f"vfio.{step.act.value}-done")
        return failure

    async def _act(self, step: Step, writing: writer.Writer) -> Failure | None:
        if step.act in LOOKS:
            # A link is read without a thread: no driver is asked, so that nothing can keep it waiting.
            message = self._verify(step) if step.act is Act.VERIFY else await self._wait(step)
            return None if message is None else Failure(step=step, message=message)
        limit_s = self._limits[step.act]
        try:
            await writing.write(self._root / step.path, step.text, limit_s)
        except writer.Hung as hung:
            rest = "it was ended" if hung.is_gone else f"process {hung.pid} stays in the kernel until it lets go"
            message = f'"{step.shown}" did not return within {limit_s:g} s; {rest}'
            return Failure(step=step, message=message, is_hung=True)
        except OSError as error:
            if step.act is Act.UNBIND and error.errno in _WITHOUT:
                return None  # it has no driver any more, which is what was wanted
            return Failure(step=step, message=f'"{step.shown}" failed: {error.strerror}')
        return None

    def _verify(self, step: Step) -> str | None:
        """Return what is wrong with a function's driver."""
        found = attribute.find_link(f"{self._folder(step.address)}/driver")
        said = f"{step.address} is bound to {found or 'no driver'}"
        if step.text:
            return None if found == step.text else f"{said} and not to {step.text}; see dmesg for its reason"
        return f"{said} still" if is_vfio(found) else None

    async def _wait(self, step: Step) -> str | None:
        """Look until what is waited for is there; returns why it is not."""
        look = self._unanswered if step.act is Act.ANSWERS else self._unscrubbed
        message: str | None = "it was not looked at"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(step.limit_s):
                while (message := await asyncio.to_thread(look, step.address)) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)  # the hardware sends no word when it is done
        return None if message is None else f"{message} within {step.limit_s:g} s"

    def _unanswered(self, address: str) -> str | None:
        try:
            head = attribute.read(f"{self._folder(address)}/config", size=4)
        except OSError as error:
            return f"{address} did not answer ({error.strerror})"
        return f"{address} did not answer" if head in {b"", b"\xff" * 4} else None

    def _unscrubbed(self, address: str) -> str | None:
        try:
            with registers.opened(self._root, address) as opened:
                said = registers.is_scrubbed(opened)
        except OSError as error:
            return f"{address} did not say that its memory is erased ({error.strerror})"
        return None if said else f"{address} did not say that its memory is erased"

    async def _undo(self, plan: binding.UnitPlan, failure: Failure | None) -> tuple[str, ...]:
        """Put a unit back as it was; returns what is not, one line each."""
        snapshot = await self.scan()
        pairs = [(was, now) for was in plan.functions if (now := snapshot.find(was.address)) is not None]
        shut = {failure.step.address} if failure is not None and failure.is_hung else set[str]()
        async with self._open_writer() as writing:
            for step in binding.plan_undo([was for was, _ in pairs], [now for _, now in pairs]):
                if step.address not in shut and (again := await self._do(step, writing)) is not None and again.is_hung:
                    shut.add(step.address)
        after = await self.scan()
        return tuple(line for was in plan.functions for line in _differences(was, after.find(was.address)))

    async def reset(
        self,
        addresses: Collection[str],
        *,
        is_ours: bool = False,
        needs_erased: bool = True,
        scrub_s: float = resetting.SCRUB_S,
    ) -> None:
        """Reset functions with all that goes where they go, and wait until their memory is erased.

        Args:    is_ours: this process keeps their nodes open; its own descriptors never count.
                 needs_erased: whether memory must say that it is erased, after all resets that there are; else any
                 reset is enough.   scrub_s: seconds that erasing may take.
        Raises:  NotFound: there is none of that address.   Conflict: it is in use, or on another driver.
                 DeviceFault: it is not clean, and why; what could be done was.
                 Unavailable: a write hung, or no child can be started.
        """
        snapshot = await self.scan()
        if missing := [one for one in addresses if snapshot.find(one) is None]:
            message = f"there is no function {', '.join(missing)} that can be passed through"
            raise errors.NotFound(message, reason="VFIOFunctionUnknown", hint="fairlead vfio list")
        snapshot = await self._mend(snapshot, addresses)
        holders = await self.find_holders(_together(snapshot, addresses), is_ours=is_ours, opens=True)
        plan = resetting.plan_reset(snapshot, addresses, holders, scrub_s=scrub_s)
        plan = plan if needs_erased else resetting.without_erasing(plan)
        if plan.refusals:
            first = plan.refusals[0]
            raise errors.Conflict(first.message, reason="VFIOResetRefused", hint=first.mend or None)
        async with self._open_writer() as writing:
            failure = await self._reset(plan, writing)
        if failure is not None and failure.is_hung:
            hint = "it needs a reboot of the machine if that process does not end"
            raise errors.Unavailable(failure.message, reason="VFIOResetHung", hint=hint)
        if reasons := [*([failure.message] if failure else ()), *plan.reasons]:
            message = f"{', '.join(addresses)} is not clean: {'; '.join(reasons)}"
            raise errors.DeviceFault(message, reason="VFIONotClean", hint="keep it from tenants until it is")

    async def _mend(self, snapshot: Snapshot, addresses: Collection[str]) -> Snapshot:
        """Put back what a reset left behind that was killed; returns the machine as it is then."""
        if not (steps := resetting.plan_left(snapshot, addresses)):
            return snapshot
        async with self._open_writer() as writing:
            for step in steps:
                if (failure := await self._do(step, writing)) is not None:
                    telemetry.log.warning("reset methods not restored", pci=step.address, error=failure.message)
        return await self.scan()

    async def _reset(self, plan: resetting.ResetPlan, writing: writer.Writer) -> Failure | None:
        for at, step in enumerate(plan.steps):
            if (failure := await self._do(step, writing)) is None:
                continue
            if not failure.is_hung:  # the kernel's own choice of resets is as before, whatever happened
                for later in _restoring(plan.steps[at:], step.address):
                    await self._do(later, writing)
            return failure
        return None

    def _folder(self, address: str) -> str:
        return f"{self._root}/sys/bus/pci/devices/{address}"


def _together(snapshot: Snapshot, addresses: Collection[str]) -> list[Function]:
    """Return functions with all that goes where they go."""
    return [one for whole in unit.list_units(snapshot, addresses) for one in whole]


def _restoring(steps: Sequence[Step], address: str) -> Iterator[Step]:
    """Yield the last step that says how a function is reset: what was so before."""
    chosen = [one for one in steps if one.act is Act.CHOOSE_RESET and one.address == address]
    yield from chosen[-1:]


def _differences(was: Function, now: Function | None) -> Iterator[str]:
    """Yield what is not as it was, with the command that makes it so."""
    if now is None:
        yield f"{was.address} is gone"
        return
    if now.override != was.override:
        command = f"echo {was.override} > /sys/bus/pci/devices/{was.address}/driver_override".replace(
            "echo  >", "echo >"
        )
        yield f'{was.address} has the override "{now.override}" left; {command}'
    if now.driver != was.driver:
        before = f"; it was bound to {was.driver}: fairlead vfio release {was.address}" if was.driver else ""
        yield f"{was.address} is bound to {now.driver or 'no driver'}{before}"
