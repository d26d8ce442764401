"""Represents one container of a service: its state, its output, and what can be done with it."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Generator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors
from fairlead.client import answers, calls, record
from fairlead.client.session import copying, forward, process
from fairlead.client.session import follow as following
from fairlead.client.session.logs import Logs

_GONE: Final = "gone"
ENDED: Final = frozenset({"succeeded", "failed", "stopped", _GONE})
"""States of a container that runs no more."""
_STARTED: Final = frozenset({"running", "crashed", "stopping"}) | ENDED
_SLICE_S: Final = 30.0
"""How long the service is asked to hold one answer of `wait`."""
_PATIENCE_S: Final = 300.0
"""How long a start is waited for before a process joins it; an image may have to be pulled."""
_FIELDS: Final = (
    "name",
    "state",
    "reason",
    "message",
    "image",
    "gpus",
    "node",
    "exit_code",
    "started_at",
    "finished_at",
)


class Container:
    """One container, or one group of containers that were started together.

    What is known of it is as of the last answer; `refresh` asks again.
    """

    def __init__(self, service: calls.Calls, view: answers.ContainerView) -> None:
        """Take its service, and what is known of it."""
        self._calls = service
        self.view = view
        """All that the service last said of it."""

    @property
    def name(self) -> str:
        """Its name, unique in its namespace."""
        return self.view.name

    @property
    def namespace(self) -> str:
        """Its namespace; a tenancy has one of its own."""
        return self.view.namespace

    @property
    def state(self) -> str:
        """pending, creating, running, crashed, stopping, succeeded, failed or stopped; gone once removed."""
        return self.view.state

    @property
    def image(self) -> str:
        """The image of its first container."""
        return self.view.image

    @property
    def gpus(self) -> int:
        """How many devices it asked for."""
        return self.view.gpus

    @property
    def exit_code(self) -> int | None:
        """The first exit code that is not 0, else 0; None before its end."""
        return self.view.exit_code

    def refresh(self) -> Container:
        """Ask what it is now; return itself. Raises: NotFound."""
        self.view = self._calls.call("GET", self._path, answers.ContainerView, params=self._where)
        return self

    def wait(self, state: str = "ended", *, timeout_s: float | None = None) -> answers.ContainerView:
        """Wait until it has started, ended or is gone, and return what it is then: `.exit_code` has how it ended.

        Args:   state: started, ended or gone.   timeout_s: return what it is after so long; None: wait for ever.
        Raises: NotFound.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _SLICE_S if until is None else max(0.0, min(_SLICE_S, until - time.monotonic()))
            params = {**self._where, "state": state, "timeout": left}
            path, patience = f"{self._path}/wait", left + 30
            try:
                self.view = self._calls.call("GET", path, answers.ContainerView, params=params, timeout_s=patience)
            except errors.NotFound:
                if state != _GONE:
                    raise
                self.view = msgspec.structs.replace(self.view, state=_GONE)
            is_over = until is not None and time.monotonic() >= until
            if is_over or self.view.state in {"started": _STARTED, "ended": ENDED}.get(state, {_GONE}):
                return self.view

    def logs(
        self,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | dt.datetime | None = None,
        timestamps: bool = False,
        container: str = "",
    ) -> Logs:
        """Return what it wrote, standard error among it: lines to iterate over.

        Where it is followed a restart of the service is waited for, and no line is lost or repeated by it.
        Args:   follow: wait for the start and go on to the end.   tail: only the last lines.   since: only what was
                written since.   timestamps: begin each line with its time.   container: which one of a group.
        Raises: nothing before it is read; then NotFound, Conflict (`ContainerNotStarted`).
        """
        params = {
            **self._where,
            "follow": str(follow).lower(),
            "tail": tail,
            "since": moment(since),
            "timestamps": str(timestamps).lower(),
            "container": container or None,
        }
        path = f"{self._path}/logs"
        if not follow:
            return Logs(lambda: self._calls.stream("GET", path, params=params), self.name)
        return Logs(lambda: contextlib.closing(self._followed(path, params)), self.name)

    def _followed(self, path: str, params: Mapping[str, object]) -> Generator[bytes, None, None]:
        """Yield what it writes, both streams together, across restarts of the service."""
        for _, piece in following.output(self._calls, path, params):
            yield piece

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes | str = b"",
        env: Mapping[str, str] | None = None,
        workdir: str = "",
        user: str = "",
        container: str = "",
    ) -> process.ExecResult:
        """Run one more process in it to its end; one that is being started is waited for.

        Args:   command: the program and its words, no shell.   stdin: what it reads.
        Raises: NotFound; Conflict (`ContainerNotRunning`); Invalid: there is no such program.
        """
        self._await_running()
        params = [("command", word) for word in command]
        params += [("namespace", self.namespace), ("split", "true"), ("stdin", "true")]
        params += [("env", f"{name}={value}") for name, value in (env or {}).items()]
        params += [
            (name, value) for name, value in {"workdir": workdir, "user": user, "container": container}.items() if value
        ]
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return process.run(self._calls, f"{self._path}/exec", params, data)

    def cp(self, source: str | PathLike[str], target: str | PathLike[str], *, container: str = "") -> None:
        """Copy files into it or out of it; a path of the container is written with a colon before it.

        `cp("data", ":/data")` copies in, `cp(":/out/model.pt", ".")` copies out. As with cp(1), a folder that is there
        receives the source. Nothing is written outside the target, whatever the container packs.
        Raises: Invalid: none or both are paths of the container, or it cannot be copied; NotFound; Conflict.
        """
        one, other = str(source), str(target)
        copying.check_ends(one, other)
        self._await_running()
        where = {"namespace": self.namespace, "container": container}
        inner = copying.rooted((one if one.startswith(":") else other)[1:])
        end = copying.End(path=inner, container=self.name, where=where)
        if one.startswith(":"):
            copying.copy_out(self._calls, end, Path(other))
        else:
            copying.copy_in(self._calls, one, end)

    def port_forward(self, port: int, *, local: int = 0, address: str = "127.0.0.1") -> forward.Forward:
        """Listen on a port of this machine that leads to one of the container's own loopback; close it when done.

        `with container.port_forward(8888) as forwarded:` opens it for a block; `forwarded.port` is this machine's.
        Raises: NotFound; Conflict (`ContainerNotRunning`); Unavailable (`PortTaken`).
        """
        self._await_running()
        path = f"{self._path}/ports/{port}"
        return forward.Forward(self._calls, path, {"namespace": self.namespace}, address=address, local=local)

    def stop(self, *, grace_s: int | None = None) -> Container:
        """Ask for a stop, keep its record, and return itself; `wait` returns when it has ended.

        Args:   grace_s: seconds between SIGTERM and SIGKILL; None: the container's own.
        """
        return self._changed("POST", f"{self._path}:stop", grace=grace_s)

    def remove(self, *, grace_s: int | None = None) -> Container:
        """Stop it, remove its record, and return itself; `wait("gone")` returns when it is over."""
        return self._changed("DELETE", self._path, grace=grace_s)

    def restart(self, *, grace_s: int | None = None) -> Container:
        """Stop it where it runs and start it anew; return itself."""
        return self._changed("POST", f"{self._path}:restart", grace=grace_s)

    def rename(self, name: str) -> Container:
        """Give it another name, unless it runs; return itself. Its record, output and usage stay."""
        path = f"{self._path}:rename"
        self.view = self._calls.call("POST", path, answers.ContainerView, params=self._where, body={"name": name})
        return self

    def signal(self, name: str | int) -> Container:
        """Send a signal to its first process, by name or number; return itself."""
        return self._changed("POST", f"{self._path}:signal", signal=str(name))

    def explain(self) -> answers.Explanation:
        """Say why it waits, failed or runs where it does."""
        return self._calls.call("GET", f"{self._path}/explain", answers.Explanation, params=self._where)

    def trace(self) -> answers.TraceView:
        """Return what every layer recorded of it, from the silicon to the process."""
        return self._calls.call("GET", f"{self._path}/trace", answers.TraceView, params=self._where)

    def events(self) -> record.Listing[answers.EventView]:
        """Return what happened to it, oldest first."""
        found = self._calls.call("GET", f"{self._path}/events", answers.EventList, params=self._where)
        return record.Listing(found.items, columns=("at", "reason", "message", "source"))

    def usage(self) -> answers.UsageView:
        """Return what it uses of CPU and memory now. Raises: Conflict (`ContainerNotRunning`)."""
        self._await_running()
        return self._calls.call("GET", f"{self._path}/usage", answers.UsageView, params=self._where)

    def metrics(
        self,
        since: str | dt.datetime | None = None,
        *,
        until: str | dt.datetime | None = None,
        step_s: int | None = None,
    ) -> answers.MetricsView:
        """Return what it and its GPUs did over time: a mean and a peak for each step, None where nothing is known.

        Args:   since, until: a time, or how long ago: 90m, 6h, 7d; None: the last hour.   step_s: seconds between two
                points, a multiple of 10; None: at most 360 points.
        Raises: NotFound (`HistoryAbsent`): none are kept here.
        """
        asked = {"since": moment(since), "until": moment(until), "step": step_s}
        params = {**self._where, **asked}
        return self._calls.call("GET", f"{self._path}/metrics", answers.MetricsView, params=params)

    def __repr__(self) -> str:
        """Name it and its state."""
        why = f": {self.view.reason}" if self.view.reason else ""
        return f"<Container {self.name} {self.state}{why}>"

    def _repr_html_(self) -> str:
        found = [(name, getattr(self.view, name)) for name in _FIELDS]
        return record.table(("", "Container"), [(name, value) for name, value in found if value not in (None, "")])

    @property
    def _path(self) -> str:
        return calls.container_path(self.name)

    @property
    def _where(self) -> dict[str, str]:
        return {"namespace": self.namespace}

    def _changed(self, method: str, path: str, **params: object) -> Container:
        self.view = self._calls.call(method, path, answers.ContainerView, params={**self._where, **params})
        return self

    def _await_running(self) -> None:
        """Return once it runs or will not; what waits for a GPU is left to the service, which refuses the rest."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            if self.state == "creating" or (self.state == "pending" and self.view.waiting is None):
                self.wait("started", timeout_s=1.0)
            else:
                return


def moment(value: str | dt.datetime | None) -> str | None:
    """Return a time as the API takes it; one without a zone is this machine's."""
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value
