"""`fairlead run`: submits, shows what is waited for, follows the output, exits with the container's code.

While it waits for the start Ctrl-C leaves the container to the service and says how to come back to it; a second one
within two seconds stops it. Once the process runs, signals go to it, as docker's do: with `-t` the terminal sends them,
else we do. The container belongs to the service, never to this process: killing this process changes nothing.
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors, files
from fairlead.cli.container import explain, logs, signals, stop, wait
from fairlead.cli.container.start import claimflags, gpuoption, hopeless, runflags, runhelp
from fairlead.cli.core import client as api
from fairlead.cli.core import invocation, options, output, plaintext, progress, sections
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import replay, streams
from fairlead.client import calls
from fairlead.model.container import asked, isolation
from fairlead.serve.admission.request import ContainerRequest
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerList, ContainerView

_INTERRUPTED: Final = 130
_NO_PROGRAM: Final = 127
_NVIDIA: Final = "nvidia-smi"
_READ_S: Final = 60
"""How long the record of a followed container stays for its client to read."""
_SECOND_CHANCE_S: Final = 2.0
_EXPLAIN_AFTER_S: Final = 0.5
_RESTART_S, _AGAIN_S = 20.0, 0.5
"""How long, and how often, a service that broke off is asked for the container that it may have made."""
_UNKNOWN: Final = frozenset({"ServiceBrokeOff", "ServiceSlow", "RequestInFlight"})
"""Reasons of failures after which the container may have been made."""


_DRY: Final = {"dry_run": "true"}
_EXAMPLES: Final = """\b
Examples:
  fairlead run -g 2 localhost/demo -- nvidia-smi -L
  fairlead run -d -g 1 --name train my/image
  fairlead run -f pod.yaml
"""


class _Run(sections.SectionedCommand):
    """A command whose `-h` is the hostname, as docker's is, and alone prints the help, as everywhere else."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        return super().parse_args(ctx, ["--help"] if args == ["-h"] else args)


@click.command(
    cls=_Run,
    common=runhelp.COMMON,
    sections=runhelp.SECTIONS,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["--help"]},
    epilog=_EXAMPLES,
)
@click.argument("image", required=False, shell_complete=options.complete_images)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "-g",
    "--gpus",
    multiple=True,
    metavar="N|all|RESOURCE=N",
    help="whole GPUs, all, or devices of a resource (nvidia.com/mig-1g.10gb=1)",
)
@click.option(
    "--gpu-memory", metavar="SIZE", help="memory of a part of one GPU, as 8Gi  [default: the share of its compute]"
)
@click.option(
    "--gpu-compute", metavar="PERCENT", help="percent of one GPU's compute, as 30  [default: the share of its memory]"
)
@click.option(
    "--isolation",
    metavar="WORD[,WORD]",
    help="none, gvisor or vm: what is between it and the node; mps, mig or none: what limits that part of a GPU",
)
@click.option("--claim", multiple=True, metavar="NAME[=TEMPLATE]", help="devices of a claim, or of one of a template")
@click.option(
    "--device-class",
    default="",
    metavar="CLASS",
    help="claim the devices of -g from this class  [with --where: NVIDIA's]",
)
@click.option(
    "--where", default="", metavar="CONDITIONS", help="what those devices must be, as model=H100,memory>=40Gi,numa=same"
)
@click.option("--device", multiple=True, metavar="VENDOR/CLASS=NAME", help="CDI device by its name; none is a GPU")
@click.option(
    "--reservation", default="", metavar="NAME", help="use the GPUs of this reservation: start while it is open"
)
@click.option("-d", "--detach", is_flag=True, help="print the name and return")
@click.option(
    "-f", "--file", type=click.File("rb"), help="a Kubernetes manifest instead of an image; - reads standard input"
)
@click.option("--name", default="", help="name of the container  [default: made from the image's]")
@click.option("-n", "--namespace", default="", help="namespace to run in  [default: default, or the context's]")
@options.tenancy_option
@click.option("-e", "--env", multiple=True, metavar="KEY[=VALUE]", help="environment variable; KEY: as it is here")
@click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path), help="file of KEY=VALUE lines")
@click.option("--secret", multiple=True, metavar="NAME[/KEY][=VARIABLE|:/PATH]", help="value of a secret  [a file]")
@click.option("-v", "--volume", multiple=True, metavar="HOST|NAME:/CONTAINER[:ro]", help="folder or named volume")
@click.option("--mount", multiple=True, metavar="type=bind,...", help="the same in docker's long notation")
@click.option(
    "-p",
    "--publish",
    multiple=True,
    metavar="[IP:][HOST]:CONTAINER",
    help="port of the host that leads in; no HOST, as IP::CONTAINER: a free one",
)
@click.option("--add-host", multiple=True, metavar="NAME:ADDRESS", help="one more line of its /etc/hosts")
@click.option("--dns", multiple=True, metavar="ADDRESS", help="name server in place of the engine's")
@click.option("--dns-search", multiple=True, metavar="DOMAIN", help="where short names are looked up; beside --dns")
@click.option("--dns-option", "--dns-opt", multiple=True, metavar="NAME[:VALUE]", help="of its resolver, ndots:2")
@click.option("--health-cmd", metavar="COMMAND", help="says whether it is well, by its exit code; shown by `ps`")
@click.option("--health-interval", type=options.Duration(least_s=1), help="between two checks  [default: 30s]")
@click.option("--health-timeout", type=options.Duration(least_s=1), help="longest that one may take  [default: 30s]")
@click.option("--health-retries", type=click.IntRange(1, 1000), help="failures that make it unhealthy  [default: 3]")
@click.option("--health-start-period", type=options.Duration(), help="before the first check  [default: 0s]")
@click.option("--no-healthcheck", is_flag=True, help="no check; an image's own is never made here")
@click.option("--shm-size", metavar="SIZE", help="size of /dev/shm  [default: half the memory with GPUs, else 64m]")
@click.option("--tmpfs", multiple=True, metavar="/PATH[:size=SIZE]", help="file system in memory")
@click.option("-l", "--label", multiple=True, metavar="KEY=VALUE", help="label")
@click.option("--cpus", help="CPUs at most, 1.5 or 500m")
@click.option("-m", "--memory", metavar="SIZE", help="memory at most, 512m or 4Gi")
@click.option("--entrypoint", help="replaces the image's entrypoint; empty: none")
@click.option(
    "-h", "--hostname", default="", metavar="NAME", help="name the container sees as its own  [default: its name]"
)
@click.option("-w", "--workdir", default="", help="working folder in the container")
@click.option("-u", "--user", default="", metavar="USER[:GROUP]", help="by number, or by name in the image")
@click.option("--group-add", multiple=True, metavar="GROUP", help="one more group, by number or name in the image")
@click.option("--init", is_flag=True, help="an init is process 1, which reaps children; the program is not")
@click.option("--stop-signal", default="", metavar="SIGNAL", help="sent first by a stop  [default: image's, SIGTERM]")
@click.option("--read-only", is_flag=True, help="its root file system is only read")
@click.option("--cap-drop", multiple=True, metavar="NAME", help="capability to take away; ALL: every one")
@click.option("--network", "--net", "network", default="", metavar="none|bridge|host", help="what it sees of networks")
@click.option("--ipc", default="", metavar="private|host", help="whose shared memory it sees")
@click.option("--ulimit", multiple=True, metavar="NAME=SOFT[:HARD]", help="limit of its processes, memlock=-1")
@click.option(
    "--pull",
    type=click.Choice(runflags.PULLS, case_sensitive=False),
    help="when the image is fetched  [default: missing]",
)
@click.option(
    "--restart",
    type=runflags.Restart(runflags.RESTARTS, case_sensitive=False),
    default="never",
    show_default=True,
    help="when it is started again",
)
@click.option("--priority", metavar="N|CLASS", help="in the queue: higher goes first; a PriorityClass")
@click.option("--preempt", is_flag=True, help="end containers of lower priority for it, if that makes room")
@click.option("--queue", default="", metavar="NAME", help="queue that it is in  [default: its namespace's]")
@click.option("--replicas", type=click.IntRange(1, 1000), metavar="N", help="run N of them, NAME-0 and so on; with -d")
@click.option("--gang", is_flag=True, help="start all replicas at once, or none of them")
@click.option(
    "--min-available", type=click.IntRange(1, 1000), metavar="N", help="with --gang: start once this many fit together"
)
@click.option("--timeout", type=options.Duration(least_s=1), help="stop the container after so long, as 90, 30m")
@click.option(
    "--stop-timeout",
    type=options.Duration(),
    default=10,
    show_default=True,
    help="between SIGTERM and SIGKILL at a stop",
)
@click.option("-i", "--interactive", "stdin", is_flag=True, help="pass standard input on")
@click.option("-t", "--tty", is_flag=True, help="give the process a terminal")
@click.option("--wait", "for_ever", is_flag=True, help="wait also for what no node has: one may get it")
@click.option("--sig-proxy/--no-sig-proxy", default=True, help="pass signals on to the process  [default: yes]")
@click.option("--rm", "remove", is_flag=True, help="remove the container once it has ended")
@click.option("--dry-run", is_flag=True, help="check everything and say why it would wait; run nothing")
@options.pass_client
@click.pass_context
def run(
    ctx: click.Context, client: Client, /, *, image: str | None, file: Any, detach: bool, remove: bool, **given: Any
) -> None:
    """Run a container, follow its output, exit with its code."""
    if (image is None) == (file is None):
        raise click.UsageError("give an IMAGE or --file, one of them", ctx=ctx)
    if file is not None:
        shown = _submit_manifest(client, file, given["namespace"], is_dry=given["dry_run"])
    else:
        given["remove_after_s"] = _removal(client, remove=remove, detach=detach)
        given = claimflags.by_name(given, client)
        given["part"] = {} if claimflags.is_claiming(given) else runflags.gpu_part(given, client)
        own = invocation.current(ctx).env
        shown = [_submit(client, str(image), one, own) for one in runflags.replicas(given, detach=detach)]
    if any(item.isolation == isolation.GVISOR and item.gpus for item in shown):
        plaintext.echo(f"note: {isolation.LIMITS}", err=True)
    if given["dry_run"]:
        for item in shown:
            _foretell(item, given["device"])
        return
    code = _followed(client, shown, given, detach=detach, remove=remove)
    if not given["stdin"] and getattr(file, "name", "") != "<stdin>":
        streams.warn_of_unread_input()
    ctx.exit(code)


def _followed(
    client: Client, shown: Sequence[ContainerView], given: Mapping[str, Any], *, detach: bool, remove: bool
) -> int:
    """Follow one container to its end, or name those that run on; return the exit code."""
    for_ever = given["for_ever"] or bool(client.cluster)  # a cluster may get the node that is lacking
    if detach or len(shown) != 1:
        if not for_ever:
            hopeless.end(client, shown)
        for item in shown:
            plaintext.echo(item.name)
        return 0
    how = How(stdin=given["stdin"], tty=given["tty"], sig_proxy=given["sig_proxy"], for_ever=for_ever)
    code = follow(client, shown[0].name, shown[0].namespace, how, remove=remove)
    first = next(iter(options.words(given["command"])), "")
    if code == _NO_PROGRAM and first.startswith("-"):
        plaintext.echo(f'  hint: options of run come before the image, "{first}" came after it', err=True)
    return code


def _removal(client: Client, *, remove: bool, detach: bool) -> int | None:
    """Return after how many seconds the service removes the ended container; None: it does not.

    A client that follows a container removes it after its end; if that client is gone, the service does. On a cluster
    a followed container is removed by its client alone.
    """
    if not remove or (client.cluster and not detach):
        return None
    return 0 if detach else _READ_S


def request_of(client: Client, words: Sequence[str], own: Mapping[str, str]) -> ContainerRequest:
    """Return what a line of `run` asks for.

    Args:   words: behind `run`.   own: variables of this process.
    Raises: Invalid.
    """
    with run.make_context("run", list(words)) as ctx:
        given = {**claimflags.by_name(ctx.params, client), "remove_after_s": None}
    given["part"] = {} if claimflags.is_claiming(given) else runflags.gpu_part(given, client)
    (one,) = runflags.replicas(given, detach=True)
    return _request(client, str(given["image"]), one, own)


def _submit(client: Client, image: str, given: dict[str, Any], own: Mapping[str, str]) -> ContainerView:
    request = _request(client, image, given, own)
    if given["dry_run"]:
        judged = client.call("POST", "/v1/containers", ContainerView, params=_DRY, body=request)
        if claim := claimflags.document(request):
            plaintext.echo(claim)
        return judged
    return _sent_once(client, request)


def _request(client: Client, image: str, given: dict[str, Any], own: Mapping[str, str]) -> ContainerRequest:
    return ContainerRequest(
        image=runflags.image(image),
        name=runflags.name(given["name"]),
        namespace=given["namespace"],
        **runflags.entrypoint(given["entrypoint"], options.words(given["command"])),
        env={
            **given["array"],
            **gpuoption.variables(given["gpus"]),
            **options.environment(given["env"], given["env_files"], own),
        },
        secrets=runflags.secrets(given["secret"]),
        claims=claimflags.claims(given["claim"]),
        labels={**given["array_labels"], **options.pairs(given["label"], "--label")},
        queue=given["queue"],
        reservation=given["reservation"],
        devices=runflags.named_devices(given["device"]),
        gang=given["gang"],
        gang_minimum=given["min_available"],
        preempt=given["preempt"],
        memory_mounts=runflags.memory_mounts(given["tmpfs"], given["shm_size"]),
        ports=runflags.ports(given["publish"]),
        hostname=given["hostname"],
        hosts=runflags.hosts(given["add_host"]),
        dns=given["dns"],
        dns_searches=given["dns_search"],
        dns_options=given["dns_option"],
        groups=given["group_add"],
        init=given["init"],
        stop_signal=given["stop_signal"],
        health=runflags.health(given),
        pull=runflags.pull(given["pull"] or ""),
        time_limit_s=given["timeout"],
        priority=runflags.priority(given["priority"], cluster=bool(client.cluster)),
        grace_s=given["stop_timeout"],
        cpu=runflags.amount(given["cpus"], "--cpus", "1.5"),
        memory=runflags.amount(runflags.memory(given["memory"]), "--memory", "512m or 4Gi"),
        workdir=given["workdir"],
        user=runflags.user(given["user"]),
        read_only=given["read_only"],
        cap_drop=runflags.capabilities(given["cap_drop"]),
        network=given["network"],
        ipc=given["ipc"],
        isolation=runflags.isolations(given)[1],
        ulimits=runflags.ulimits(given["ulimit"]),
        remove_after_s=given["remove_after_s"],
        restart=runflags.restart(given["restart"]),
        tty=given["tty"],
        stdin=given["stdin"],
        **runflags.mounts(given["volume"], given["mount"], cluster=bool(client.cluster)),
        **_devices(client, given),
    )


def _devices(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the devices that are asked for: by a claim, by a part of a GPU, or by number."""
    if claimflags.is_claiming(given):
        return claimflags.made(given)
    return {"resources": given["part"]} if given["part"] else runflags.devices(given["gpus"], client)


def _foretell(judged: ContainerView, named: Sequence[str] = ()) -> None:
    """Print that a dry run was accepted, the devices it asks for, and why the container would wait."""
    claims = (one.claim or one.name for one in judged.claims)
    wanted = asked.in_words(judged.resources, claims, named)
    plaintext.echo(f"{judged.name or judged.image} would be accepted, asking for {wanted}")
    if judged.waiting is not None:
        plaintext.echo(f"  {judged.waiting.message}")


def _sent_once(client: Client, request: ContainerRequest) -> ContainerView:
    """Have one container made, also where the answer is lost: the request is sent again under the same key."""
    headers, until, is_open = {calls.IDEMPOTENCY_KEY: uuid.uuid4().hex}, time.monotonic() + _RESTART_S, False
    while True:
        try:
            return client.call("POST", "/v1/containers", ContainerView, body=request, headers=headers)
        except (errors.Unavailable, errors.Conflict) as error:
            is_open = is_open or error.reason in _UNKNOWN
            if not is_open or error.reason not in {*_UNKNOWN, "ServiceUnreachable"} or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)


def _submit_manifest(client: Client, file: Any, namespace: str, *, is_dry: bool) -> list[ContainerView]:
    params = {"namespace": namespace or None, **(_DRY if is_dry else {})}
    made = client.call("POST", "/v1/pods", ContainerList, params=params, content=file.read(files.LARGEST_BYTES))
    for warning in made.warnings:
        plaintext.echo(f"warning: {warning}", err=True)
    return list(made.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a container is followed."""

    stdin: bool = False
    tty: bool = False
    sig_proxy: bool = True
    for_ever: bool = True
    """It is waited for what no node has, too."""


def follow(client: Client, name: str, namespace: str, how: How | None = None, *, remove: bool = False) -> int:
    """Follow a container to its end and return its exit code.

    Until its process has started Ctrl-C detaches; then signals go to the process, three of them leave it running.
    """
    how = how or How()
    try:
        shown = await_start(client, name, namespace, for_ever=how.for_ever)
    except KeyboardInterrupt:
        return _detach(client, name, namespace)
    try:
        with signals.proxied(client, name, namespace) if how.sig_proxy else contextlib.nullcontext():
            code = _carry(client, shown, how)
    except streams.Detached:
        return _left(name)
    except (signals.Left, KeyboardInterrupt):
        plaintext.echo(f"\n{name} keeps running; `fairlead logs -f {name}` comes back to it", err=True)
        return _INTERRUPTED
    if remove:
        with contextlib.suppress(errors.NotFound):
            client.delete(name, namespace)
    return code


def _left(name: str) -> int:
    plaintext.echo(f"\n{name} keeps running; `fairlead attach {name}` comes back to it", err=True)
    return 0


def join(client: Client, name: str, namespace: str, container: str = "") -> int:
    """Join the terminal of a container that runs, until its end or Ctrl-P Ctrl-Q; return its exit code.

    Args:   container: which one of the group; empty: the first.
    Raises: Conflict (`ContainerNotRunning`); one without an open input is only read.
    """
    shown: ContainerView | view.ContainerPart = client.container(name, namespace)
    if container and isinstance(shown, ContainerView):
        shown = next((part for part in shown.containers if part.name == container), shown)
    params = [("namespace", namespace), ("stdin", str(shown.stdin).lower()), ("split", "true")]
    params += [("container", container)] if container else []
    with client.connect(f"{api.container_path(name)}/attach", params) as connection:
        if shown.stdin and shown.tty and sys.stdin.isatty():
            plaintext.echo(f"joined {name}; Ctrl-P Ctrl-Q leaves it running", err=True)
        try:
            code = streams.carry(streams.Session(connection), stdin=shown.stdin, terminal=shown.tty, detaches=True)
        except streams.Detached:
            return _left(name)
    if container:
        return code
    return _report(_await_end(client, name, namespace))


def _carry(client: Client, shown: ContainerView, how: How) -> int:
    """Carry output, and input where it is asked for, to the end of the run; return its exit code."""
    name, namespace = shown.name, shown.namespace
    if shown.started_at is None and shown.state in view.ENDED:
        return _report(shown)
    if (how.stdin or how.tty) and _attach(client, shown, how):
        return _report(_await_end(client, name, namespace))
    query = {"namespace": namespace, "follow": "true", "once": "true"}
    parts = [logs.Source(part.name, name, part.name) for part in shown.containers]
    logs.copy_all(client, parts if len(parts) > 1 else [logs.Source(name, name, "")], query)
    return _report(_await_end(client, name, namespace))


def _attach(client: Client, shown: ContainerView, how: How) -> bool:
    """Carry the streams of the first process to its end, through restarts of the service.

    Returns: False: it had ended, and its output is to be read.
    Raises:  Unavailable (`ServiceBrokeOff`): input of a file or pipe was under way, and a part of it may be lost.
    """
    name, namespace, replayed = shown.name, shown.namespace, replay.Replay()
    params = [("namespace", namespace), ("stdin", str(how.stdin).lower()), ("replay", "true"), ("split", "true")]
    while True:
        try:
            with client.connect(f"{api.container_path(name)}/attach", params) as connection:
                session = streams.Session(connection, replay=replayed)
                streams.carry(session, stdin=how.stdin, terminal=how.tty, detaches=True)
        except errors.Conflict as error:
            if error.reason != "ContainerNotRunning":
                raise
            return False
        except errors.Unavailable as error:
            if error.reason != "ServiceBrokeOff":
                raise
            if how.stdin and not sys.stdin.isatty():
                message = f"the service restarted: a part of the input may not have reached {name}, which goes on"
                hint = f"`fairlead logs -f {name}` has its output; to send the input whole, run it again"
                raise errors.Unavailable(message, reason=error.reason, hint=hint) from error
        else:
            return True
        # This waits until the service is back, and says so.
        if client.wait(name, namespace, state="started", timeout_s=0.2).restarts != shown.restarts:
            return True  # another run of it, which is not followed
        replayed.begin_again()


def _await_end(client: Client, name: str, namespace: str) -> ContainerView:
    """Return once the run that was followed is over: the end, or the moment it is started again."""
    while True:
        shown = client.wait(name, namespace, state="ended", timeout_s=0.3)
        if shown.state in view.ENDED or shown.state == "crashed" or shown.restarts:
            return shown


def await_start(client: Client, name: str, namespace: str, *, for_ever: bool = True) -> ContainerView:
    """Return once the process has started (or never will), saying meanwhile what is waited for.

    Args:    for_ever: also where no node has what it asks for.
    Raises:  Insufficient: no node has it; the container is removed.
    """
    with progress.Progress() as waiting:
        started = time.monotonic()
        why, is_warned = "", False
        while True:
            shown = client.wait(name, namespace, state="started", timeout_s=0.2 if sys.stderr.isatty() else 1.0)
            if shown.state in view.STARTED or shown.state == "gone":
                return shown
            if time.monotonic() - started >= _EXPLAIN_AFTER_S:
                found = client.explain(name, namespace)
                why = found.summary
                if not is_warned and hopeless.never_fits(found.waiting):
                    is_warned = True
                    waiting.clear()
                    if not for_ever:
                        hopeless.end(client, [shown])
                    hopeless.warn(name, why)
                elif not is_warned and hopeless.lacks_port(found.waiting):
                    is_warned = True
                    waiting.clear()
                    hopeless.warn_of_port(name, why)
            waiting.show(explain.waiting_line(shown, why), short=why)


def _report(shown: ContainerView) -> int:
    """Return the exit code; say on standard error what a code alone does not say."""
    code = wait.exit_code_of(shown)
    if shown.state not in view.ENDED:
        last = shown.containers[-1].last_exit_code
        plaintext.echo(f"{shown.name} ended with {last} and is started again, as its restart policy says", err=True)
        plaintext.echo(f"  hint: `fairlead stop {shown.name}` ends it", err=True)
        return last or 0
    if shown.state == "succeeded" or (shown.exit_code and shown.reason in {"", "Error", "Completed"}):
        return code
    if shown.started_at is None and shown.message:
        message, hint = errors.parted(shown.message)
        reason = f" ({shown.reason})" if shown.reason else ""
        plaintext.echo(f"error: {shown.name} did not start{reason}: {message}", err=True)
        if _NVIDIA in shown.message and not any(shown.devices.values()):
            hint = f"{_NVIDIA} comes with a GPU, and none was asked for: fairlead run -g 1"
        plaintext.echo(f"  hint: {hint or f'`fairlead trace {shown.name}` shows how far it came'}", err=True)
        return code
    why = ": ".join(part for part in (shown.reason, shown.message) if part)
    if shown.reason == "DeadlineExceeded" and shown.time_limit_s is not None:
        why = f"{shown.reason}: it ran longer than its time limit of {output.span(shown.time_limit_s)}"
    plaintext.echo(f"{shown.name} {shown.state}" + (f" ({why})" if why else ""), err=True)
    return code


def _detach(client: Client, name: str, namespace: str) -> int:
    plaintext.echo(f"\n{name} still waits to start; `fairlead logs -f {name}` comes back to it", err=True)
    plaintext.echo("press Ctrl-C again to stop it", err=True)
    try:
        time.sleep(_SECOND_CHANCE_S)
    except KeyboardInterrupt:
        client.stop(name, namespace)
        with progress.Progress() as waiting:
            state = stop.await_end(client, name, namespace, None, waiting)
        plaintext.echo(f"{name} {state}", err=True)
    return _INTERRUPTED
