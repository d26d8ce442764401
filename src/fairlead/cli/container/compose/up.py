"""`fairlead compose up`: brings a project to what its file says, in the order of what depends on what.

As docker compose does, the command itself waits for the conditions of `depends_on`: what is started later, at a
restart of the machine, is started without them. A container is made anew where what it is made of has changed, or
where it has ended; all others stay.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container import logs as containerlogs
from fairlead.cli.container.compose import load, options, running
from fairlead.cli.container.compose.running import Place
from fairlead.cli.core import invocation, plaintext, progress
from fairlead.cli.core import options as core_options
from fairlead.cli.core.client import Client
from fairlead.plan.compose import objects, project
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.compose.objects import Objects, Unit
from fairlead.plan.compose.project import Project
from fairlead.serve.backend.hardware import ImageList
from fairlead.serve.v1.images.view import BuildRequest

_FAILED: Final = 1
_INTERRUPTED: Final = 130
_DONE: Final = {"created": "Created", "configured": "Recreated"}
_SHOWN: Final = {"persistentvolumeclaim": "Volume", "configmap": "Config", "secret": "Secret"}
_LOOK_S: Final = 0.3
_DRAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A project, ready to be brought up."""

    place: Place
    project: Project
    objects: Objects


def prepare(client: Client, given: load.Given, namespace: str, scale: Mapping[str, int] | None = None) -> Prepared:
    """Read a project and say what of it is not carried out. Raises: as `load.load` and `objects.make`."""
    remarks = Remarks()
    found = load.load(given, remarks)
    if scale:
        project.select(found.services, (), tuple(scale))
        services = {
            name: {**one, "scale": scale[name]} if name in scale else one for name, one in found.services.items()
        }
        found = Project(**{**{key: getattr(found, key) for key in Project.__slots__}, "services": services})
    place = Place(client=client, namespace=namespace, project=found.name)
    try:
        made = objects.make(found, place.machine(found.services), remarks)
    finally:
        for line in remarks.left_out:
            plaintext.echo(f"warning: {line}", err=True)
    return Prepared(place=place, project=found, objects=made)


def _scales(values: Sequence[str]) -> dict[str, int]:
    found = dict[str, int]()
    for word in values:
        name, sign, number = word.partition("=")
        if not sign or not number.isdecimal() or len(number) > 4:
            raise click.BadParameter(f'"{word[:80]}" is not SERVICE=NUMBER', param_hint="--scale")
        found[name] = int(number)
    return found


@click.command()
@click.argument("services", nargs=-1, metavar="[SERVICE...]")
@options.with_project()
@core_options.namespace_option
@click.option("-d", "--detach", is_flag=True, help="return once all is started")
@click.option("--wait", "waits", is_flag=True, help="return once all run, and are healthy; takes -d")
@click.option("--wait-timeout", type=core_options.Duration(), help="wait so long at most")
@click.option("--build", "builds", is_flag=True, help="build images first, also those that are there")
@click.option("--force-recreate", is_flag=True, help="make every container anew")
@click.option("--no-recreate", is_flag=True, help="leave containers as they are, also where the file has changed")
@click.option("--no-deps", is_flag=True, help="without what the named services depend on")
@click.option("--remove-orphans", is_flag=True, help="remove containers of services that the file has no more")
@click.option("--scale", "scales", multiple=True, metavar="SERVICE=N", help="containers of a service")
@click.option("-t", "--timeout", type=core_options.Duration(), help="between SIGTERM and SIGKILL at a stop")
@click.option("--abort-on-container-exit", is_flag=True, help="stop all once one has ended")
@click.option("--exit-code-from", default="", metavar="SERVICE", help="end with its code; implies the one above")
@click.option("--no-log-prefix", is_flag=True, help="lines without the name of their container")
@core_options.pass_client
@click.pass_context
def up(
    ctx: click.Context, client: Client, /, *, services: tuple[str, ...], namespace: str, detach: bool, **more: Any
) -> None:
    """Bring a project up, and follow its output until Ctrl-C."""
    prepared = prepare(client, options.given(ctx, more, services), namespace, _scales(more["scales"]))
    if more["exit_code_from"]:
        project.select(prepared.project.services, (), (more["exit_code_from"],))
    wanted = list(services) if more["no_deps"] else project.needed(prepared.project, services)
    _orphans(prepared, is_removed=more["remove_orphans"])
    _build(prepared, wanted, is_all=more["builds"])
    _folders(ctx, prepared, wanted)
    try:
        make(prepared, wanted, more)
        if more["waits"]:
            _await_all(prepared, wanted, more["wait_timeout"])
    except _Stopped as stopped:
        plaintext.echo(f"error: {stopped.message}", err=True)
        ctx.exit(_FAILED)
    if detach or more["waits"]:
        return
    code = _follow(prepared, wanted, more)
    ctx.exit(code)


class _Stopped(Exception):
    """A condition cannot come true any more: this command ends with 1, as docker compose does."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = errors.readable(message)


def say(what: str, name: str, done: str) -> None:
    """Print what became of something, as docker compose does."""
    plaintext.echo(f" {what} {name}  {done}", err=True)


def _orphans(prepared: Prepared, *, is_removed: bool) -> None:
    """Name containers of services that the file has no more, or remove them."""
    place = prepared.place
    known = prepared.project.services.keys() | prepared.project.disabled
    found = [name for name, pod in place.pods().items() if running.service_of(pod) not in known]
    if not found:
        return
    if is_removed:
        place.remove_pods(found)
        for name in found:
            say("Container", name, "Removed")
        kept = [one for one in prepared.objects.shared if one["kind"] != "Secret"]
        place.remove_others([(str(one["kind"]), str(one["metadata"]["name"])) for one in kept])
        return
    shown = ", ".join(found[:20])
    plaintext.echo(
        f"warning: {shown}: of services that the file does not have; --remove-orphans removes them", err=True
    )


def _build(prepared: Prepared, wanted: Sequence[str], *, is_all: bool) -> None:
    """Build the images of services that have none yet. Raises: Invalid: a way of building that is not offered."""
    client = prepared.place.client
    building = [name for name in wanted if prepared.project.services[name].get("build")]
    if not building:
        return
    present = {name for one in client.call("GET", "/v1/images", ImageList).items for name in one.names}
    for name in building:
        service, image = prepared.project.services[name], prepared.objects.units[name].image
        if not is_all and {image, f"{image}:latest", f"localhost/{image}:latest"} & present:
            continue
        build_image(client, name, service["build"], image)


def build_image(client: Client, name: str, build: Mapping[str, Any], image: str) -> None:
    """Build one image. Raises: Invalid: a way of building that is not offered."""
    context = Path(str(build.get("context") or "."))
    remarks = Remarks()
    objects.judge_build(build, f"services.{name}.build", remarks)
    if not context.is_absolute() or not context.is_dir():
        remarks.refuse(f"services.{name}.build.context", f'"{context}" is not a folder of this machine')
    remarks.check()
    file = str(context / str(build["dockerfile"])) if build.get("dockerfile") else ""
    say("Image", image, "Building")
    made = ""
    request = BuildRequest(
        context=str(context),
        name=image,
        containerfile=file,
        args=build.get("args") or {},
        target=str(build.get("target") or ""),
    )
    for line in client.lines("POST", "/v1/images:build", body=request):
        plaintext.echo(line.get("output", ""), nl=False, err=True)
        made = line.get("image", made)
    if not made:
        raise errors.Unavailable("the build broke off", reason="ServiceBrokeOff", hint="the service's log says why")
    say("Image", image, "Built")


def _folders(ctx: click.Context, prepared: Prepared, wanted: Sequence[str]) -> None:
    """Make folders that are bound and not there, as docker does, with the caller's own rights."""
    if not invocation.current(ctx).target().url.startswith("http+unix://"):
        return
    for name in wanted:
        for one in prepared.project.services[name].get("volumes") or ():
            source = str(one.get("source") or "")
            if one["type"] == "bind" and source.startswith("/") and not Path(source).exists():
                with contextlib.suppress(OSError):  # the container says what is wrong with it
                    Path(source).mkdir(parents=True)


def make(prepared: Prepared, wanted: Sequence[str], more: Mapping[str, Any]) -> None:
    """Make what is needed, each service once what it depends on is as it says. Raises: _Stopped."""
    place, made = prepared.place, prepared.objects
    for change in place.apply(made.shared):
        kind = change.kind.partition(".")[0]
        if kind in _SHOWN and change.action in _DONE:
            say(_SHOWN[kind], change.name, _DONE[change.action])
    for name in wanted:
        unit = made.units[name]
        if not more["no_deps"]:
            for other, condition in unit.dependencies.items():
                _await(prepared, made.units[other], condition)
        _start(prepared, unit, more)


def _start(prepared: Prepared, unit: Unit, more: Mapping[str, Any]) -> None:
    """Bring the containers of one service to what is written. Raises: Conflict: another has the name of one."""
    place = prepared.place
    present = {name: pod for name, pod in place.pods().items() if running.service_of(pod) == unit.name}
    names = {str(one["metadata"]["name"]): one for one in unit.pods}
    surplus = [name for name in present if name not in names]
    kept, anew, ended = list[str](), list[str](), set[str]()
    for name, document in names.items():
        pod = present.get(name)
        if pod is None:
            continue
        is_same = running.hash_of(pod) == running.hash_of(document) or more["no_recreate"]
        if is_same and running.has_ended(pod):
            ended.add(name)
        is_kept = is_same and not more["force_recreate"] and not running.has_ended(pod)
        (kept if is_kept else anew).append(name)
    place.remove_pods([*anew, *surplus], more["timeout"])
    for name in surplus:
        say("Container", name, "Removed")
    for name in kept:
        say("Container", name, "Running")
    for name, document in names.items():
        if name in kept:
            continue
        if name not in anew and place.pod(name) is not None:
            message = f'a container "{name}" is there, and not of this project'
            raise errors.Conflict(message, reason="AlreadyExists", hint=f"`fairlead rm -f {name}`, or another -p NAME")
        place.apply([document])
        say("Container", name, "Created" if name not in anew else "Started" if name in ended else "Recreated")


def _await(prepared: Prepared, unit: Unit, condition: str) -> None:
    """Return once a service is as another one needs it. Raises: _Stopped: it never will be."""
    if condition == "service_healthy" and unit.check is None:
        raise _Stopped(f'dependency failed to start: service "{unit.name}" has no healthcheck')
    started = dict[str, float]()
    with progress.Progress() as waiting:
        for document in unit.pods:
            name = str(document["metadata"]["name"])
            while not _is_met(prepared, unit, name, condition, started):
                waiting.show(f"waiting for {name}: {condition.removeprefix('service_').replace('_', ' ')}")
                time.sleep(running.AGAIN_S)


def _is_met(prepared: Prepared, unit: Unit, name: str, condition: str, started: dict[str, float]) -> bool:
    """Raises: _Stopped."""
    pod = prepared.place.pod(name)
    if pod is None:
        raise _Stopped(f"dependency failed to start: container {name} is not there")
    code, has_ended = running.exit_code(pod), running.has_ended(pod)
    if condition == "service_completed_successfully":
        if has_ended and code:
            raise _Stopped(f'service "{unit.name}" didn\'t complete successfully: exit {code}')
        return has_ended
    if condition == "service_started":
        return running.has_started(pod)
    if has_ended:
        raise _Stopped(f"dependency failed to start: container {name} exited ({code})")
    if running.is_ready(pod):
        return True
    if running.has_started(pod) and unit.check is not None:
        since = started.setdefault(name, time.monotonic())
        if time.monotonic() - since > unit.check.patience_s:
            raise _Stopped(f"dependency failed to start: container {name} is unhealthy")
    return False


def _await_all(prepared: Prepared, wanted: Sequence[str], timeout_s: float | None) -> None:
    """Return once every service runs, and is healthy where it has a check. Raises: _Stopped."""
    started, until = dict[str, float](), None if timeout_s is None else time.monotonic() + timeout_s
    for name in wanted:
        unit = prepared.objects.units[name]
        condition = "service_started" if unit.check is None else "service_healthy"
        for document in unit.pods:
            pod_name = str(document["metadata"]["name"])
            with progress.Progress() as waiting:
                while not _is_met(prepared, unit, pod_name, condition, started):
                    waiting.show(f"waiting for {pod_name}")
                    if until is not None and time.monotonic() > until:
                        raise _Stopped(f"timeout: container {pod_name} is not {condition.removeprefix('service_')}")
                    time.sleep(running.AGAIN_S)
            pod = prepared.place.pod(pod_name)
            if running.has_ended(pod) and (code := running.exit_code(pod)):
                raise _Stopped(f"container {pod_name} exited ({code})")
            say("Container", pod_name, "Healthy" if unit.check is not None else "Started")


def sources(pods: Sequence[running.Document], *, has_prefix: bool = True) -> list[containerlogs.Source]:
    """Return the output of pods to show, each with docker compose's words before its lines."""
    every = sorted(pods, key=lambda one: (running.service_of(one), running.number_of(one)))
    return [
        containerlogs.Source(
            f"{running.service_of(one)}-{running.number_of(one)} " if has_prefix else "",
            str(one["metadata"]["name"]),
            str(one["spec"]["containers"][0]["name"]),
        )
        for one in every
    ]


def _follow(prepared: Prepared, wanted: Sequence[str], more: Mapping[str, Any]) -> int:
    """Copy output until every container has ended, or Ctrl-C; return the exit code."""
    place, units = prepared.place, [prepared.objects.units[name] for name in wanted]
    followed = [document for unit in units if unit.is_followed for document in unit.pods]
    names = [str(document["metadata"]["name"]) for unit in units for document in unit.pods]
    from_service = more["exit_code_from"]
    is_aborting = more["abort_on_container_exit"] or bool(from_service)
    if followed:
        each = ", ".join(source.title.strip() for source in sources(followed)[:10])
        plaintext.echo(f"Attaching to {each}", err=True)
    reading = threading.Thread(
        target=_copy,
        args=(place, sources(followed, has_prefix=not more["no_log_prefix"])),
        name="output",
        daemon=True,
    )
    reading.start()
    try:
        ended = _await_end(place, names, is_first=is_aborting)
        if is_aborting and len(ended) < len(names):
            plaintext.echo("Aborting on container exit...", err=True)
            stop(place, [name for name in names if name not in ended], more["timeout"])
        reading.join(_DRAIN_S)
    except KeyboardInterrupt:
        plaintext.echo("\nGracefully stopping... (press Ctrl+C again to force)", err=True)
        try:
            stop(place, names, more["timeout"])
        except KeyboardInterrupt:
            stop(place, names, 0)
        reading.join(_DRAIN_S)
        return _INTERRUPTED
    for name in ended:
        plaintext.echo(f"{name} exited with code {running.exit_code(place.pod(name))}", err=True)
    if from_service:
        mine = [str(one["metadata"]["name"]) for one in prepared.objects.units[from_service].pods]
        return max((running.exit_code(place.pod(name)) for name in mine), default=0)
    return 0


def _copy(place: Place, each: list[containerlogs.Source]) -> None:
    query = {"namespace": place.namespace, "follow": "true", "notices": "true"}
    with contextlib.suppress(errors.FairleadError):
        if each:
            containerlogs.copy_all(place.client, each, query, is_titled=True)


def _await_end(place: Place, names: Sequence[str], *, is_first: bool) -> list[str]:
    """Return the containers that have ended: once one has, or all have."""
    while True:
        pods = place.pods()
        ended = [name for name in names if running.has_ended(pods.get(name))]
        if len(ended) == len(names) or (is_first and ended):
            return ended
        time.sleep(_LOOK_S)


def stop(place: Place, names: Sequence[str], grace_s: int | None) -> None:
    """Stop containers, and return once they have ended."""
    left = list[str]()
    for name in names:
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            place.client.stop(name, place.namespace, grace_s=grace_s)
            left.append(name)
    with progress.Progress() as waiting:
        while left := [name for name in left if not running.has_ended(place.pod(name))]:
            waiting.show(f"stopping {', '.join(left[:4])}")
            time.sleep(running.AGAIN_S)
    for name in names:
        say("Container", name, "Stopped")
