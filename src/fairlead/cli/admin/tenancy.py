"""`fairlead tenancy`: makes, shows, tests, suspends and deletes tenancies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.model.container import isolation
from fairlead.plan.tenancy.matrix import Attempt, Matrix
from fairlead.serve.v1.tenancies.view import RegistryRequest, TenancyChange, TenancyList, TenancyRequest, TenancyView
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.kubernetes import quantity

_MOST: Final = 16384
"""Characters of a password that are read; the service refuses half of it."""
_READY_S: Final = 60.0
_STEP_S: Final = 10.0
_TEST_S: Final = 300.0
"""Pods must be pulled, scheduled and started on a cluster."""


def _uses(item: TenancyView) -> str:
    return ", ".join(f"{_short(name)} {item.used.get(name, '0')}/{limit}" for name, limit in item.quota.items())


def _short(name: str) -> str:
    return name.removeprefix("requests.").rpartition("/")[2]


def _reach(item: TenancyView) -> str:
    if item.mode == kind.NONE:
        return "no network"
    parts = ["internet" if item.internet == kind.ALLOW else "no internet", *([] if item.dns else ["no DNS"])]
    return ", ".join([*parts, *([] if item.publish else ["no ports"]), *item.egress])


def _judged(item: Attempt) -> str:
    return "NOT ISOLATED" if item.is_breach else "does not work" if item.is_fault else "ok"


_COLUMNS: Final = (
    Column[TenancyView]("NAME", lambda item: item.name),
    Column[TenancyView]("PHASE", lambda item: item.phase),
    Column[TenancyView]("CONTAINERS", lambda item: str(item.containers), rank=2),
    Column[TenancyView]("USED/LIMIT", lambda item: _uses(item) or "-"),
    Column[TenancyView]("REACHES", _reach, rank=1),
    Column[TenancyView]("AGE", lambda item: output.age(item.created_at), rank=3),
    Column[TenancyView]("NAMESPACE", lambda item: item.namespace, is_wide=True),
    Column[TenancyView]("SUBNETS", lambda item: ", ".join(item.network.subnets) or "-", is_wide=True),
    Column[TenancyView]("PROBLEM", lambda item: item.problem or "-", is_wide=True),
)
_ATTEMPTS: Final = (
    Column[Attempt]("FROM", lambda item: item.source),
    Column[Attempt]("TO", lambda item: item.target),
    Column[Attempt]("FAMILY", lambda item: item.family),
    Column[Attempt]("FOUND", lambda item: "reached" if item.reached else "refused"),
    Column[Attempt]("VERDICT", _judged),
    Column[Attempt]("EXPECTED", lambda item: "reached" if item.expected else "refused", is_wide=True),
)


@click.group()
def group() -> None:
    """Keep tenants apart: a namespace, limits and a network for each."""


_argument = click.argument("name", metavar="TENANCY", shell_complete=options.complete_tenancies)


@group.command(name="create")
@click.argument("name", metavar="TENANCY")
@click.option("--display-name", default="", metavar="TEXT", help="its name for people")
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs that its containers hold together  [default: no limit]")
@click.option("--quota", multiple=True, metavar="KEY=VALUE", help="of a ResourceQuota: pods=20, limits.memory=64Gi")
@click.option(
    "--network",
    "mode",
    type=click.Choice((kind.BRIDGE, kind.NONE)),
    default=kind.BRIDGE,
    show_default=True,
    help="a network of its own, or none at all",
)
@click.option("--internet/--no-internet", default=True, show_default=True, help="may connect to public addresses")
@click.option("--dns/--no-dns", default=True, show_default=True, help="names are resolved")
@click.option("--publish/--no-publish", default=True, show_default=True, help="published ports lead in")
@click.option("--egress", multiple=True, metavar="CIDR", help="private network to allow; the others are denied")
@click.option("--image", "images", multiple=True, metavar="IMAGE", help="image it may run; team/: all below  [any]")
@click.option("--host-users/--no-host-users", default=True, help="on a cluster: pods may have the node's users  [may]")
@click.option("--isolation", type=click.Choice(isolation.WORDS), help="of each of its containers  [each chooses]")
@click.option("--nfs", default="", metavar="SERVER:/PATH", help="NFS export for its named volumes  [this disk]")
@click.option("--nfs-option", "nfs_options", multiple=True, metavar="OPTION", help="mount option of it: vers=4.2")
@options.output_option
@options.pass_client
def create_verb(
    client: Client, /, *, name: str, gpus: int | None, quota: Sequence[str], internet: bool, form: str, **given: Any
) -> None:
    """Make a tenancy and wait until it is isolated and ready."""
    limits = options.pairs(quota, "--quota")
    if gpus is not None:
        limits[f"requests.{client.status().resource}"] = str(gpus)
    given["isolation"] = given["isolation"] or ""
    request = TenancyRequest(name=name, quota=limits, internet=kind.ALLOW if internet else kind.DENY, **given)
    made = client.call("POST", "/v1/tenancies", TenancyView, body=request)
    shown = _waited(client, made, state="ready", limit_s=_READY_S)
    if shown.phase not in {kind.READY, kind.SUSPENDED}:
        message = f'tenancy "{name}" is not ready: {shown.problem or shown.phase}'
        hint = f"no container of it starts; `fairlead tenancy show {name}` says how its parts stand"
        raise errors.Unavailable(message, reason="TenancyNotReady", hint=hint)
    _show((shown,), form)


@group.command(name="set")
@_argument
@click.option("--display-name", metavar="TEXT", help="its name for people")
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs that its containers hold together")
@click.option("--quota", multiple=True, metavar="KEY=VALUE", help="of a ResourceQuota: pods=20, limits.memory=64Gi")
@click.option("--no-limit", "lifted", multiple=True, metavar="KEY", help="take a limit away: gpus, or a key of --quota")
@options.output_option
@options.pass_client
def set_verb(
    client: Client,
    /,
    *,
    name: str,
    display_name: str | None,
    gpus: int | None,
    quota: Sequence[str],
    lifted: Sequence[str],
    form: str,
) -> None:
    """Change a tenancy's limits or name; what is not named stays as it is.

    Containers that run go on, also where they are beyond the new limits; new ones are refused until they fit.
    """
    resource = f"requests.{client.status().resource}" if gpus is not None or "gpus" in lifted else ""
    limits: dict[str, str | None] = {**options.pairs(quota, "--quota")}
    if gpus is not None:
        limits[resource] = str(gpus)
    for one in lifted:
        key = resource if one == "gpus" else one
        if key in limits:
            raise click.UsageError(f"--no-limit {one}: a limit of it is given too; give one of both")
        limits[key] = None
    if not limits and display_name is None:
        raise click.UsageError("nothing is to be changed: give --gpus, --quota, --no-limit or --display-name")
    asked = TenancyChange(display_name=display_name, quota=limits)
    changed = client.call("PATCH", _path(name), TenancyView, body=asked)
    shown = _waited(client, changed, state="ready", limit_s=_READY_S)
    _show((shown,), form)
    for key, limit in shown.quota.items():
        used = shown.used.get(key, "0")
        if quantity.parse_quantity(used) > quantity.parse_quantity(limit):
            text = "what runs goes on, new containers are refused until it fits"
            plaintext.echo(f"{_short(key)}: {used} used of {limit}: {text}", err=True)


@group.command(name="list")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, form: str) -> None:
    """List tenancies and how they stand."""
    _show(client.call("GET", "/v1/tenancies", TenancyList).items, form)


@group.command(name="show")
@_argument
@options.json_option
@options.pass_client
def show_verb(client: Client, *, name: str, form: str) -> None:
    """Show one tenancy: its parts and conditions, its network and its limits."""
    item = client.call("GET", _path(name), TenancyView)
    if form != "text":
        output.show_value(item, form=form)
        return
    for label, value in (
        ("name", f"{item.name} ({item.display_name})" if item.display_name else item.name),
        ("phase", f"{item.phase}: {item.problem}" if item.problem else item.phase),
        ("namespace", item.namespace),
        ("containers", str(item.containers)),
        ("limits", _uses(item) or "none"),
        ("isolation", item.isolation or "as each container asks"),
        ("images", ", ".join(item.images) or "any"),
        ("registries", ", ".join(item.registries) or "none"),
        ("volumes", item.nfs or "on disk"),
        ("reaches", _reach(item)),
        ("subnets", ", ".join(item.network.subnets) or "none"),
    ):
        plaintext.echo(f"{label:<12}{value}")
    for one in item.conditions:
        plaintext.echo(f"{'':<12}{one.type}: {one.status} ({one.reason}){f': {one.message}' if one.message else ''}")


@group.command(name="test")
@_argument
@click.option("--image", default="", help="of the pods that do it, on a cluster  [default: Fairlead's own]")
@options.output_option
@options.pass_client
@click.pass_context
def test_verb(ctx: click.Context, client: Client, /, *, name: str, image: str, form: str) -> None:
    """Send packets from inside a tenancy's network and into it; exit with 1 where it is not isolated.

    It exits with 1 as well where what it may reach does not answer. On a cluster the packets are sent from pods, which
    are made with your rights and removed afterwards.
    """
    found = client.call("POST", f"{_path(name)}/:test", Matrix, params={"image": image or None}, timeout_s=_TEST_S)
    if form in {"table", "wide"}:
        if found.attempts:
            output.show_listing(found.attempts, _ATTEMPTS, form=form, name=lambda item: item.target)
        for one in found.left_out:
            plaintext.echo(f"not tried: {one}")
        plaintext.echo(verdict(found))
    else:
        output.show_value(found, form="json" if form == "name" else form)
    ctx.exit(0 if found.is_isolated and found.works else 1)


def verdict(found: Matrix) -> str:
    """Return the one line that says how a test ended."""
    if not found.is_isolated:
        breaches = sum(one.is_breach for one in found.attempts)
        why = found.problem or (f"{breaches} of its borders let packets through" if breaches else "nothing was tried")
        return f'tenancy "{found.tenancy}" is NOT ISOLATED: {why}'
    refused = sum(not one.expected for one in found.attempts)
    faults = sum(one.is_fault for one in found.attempts)
    rest = "" if found.works else f"; {faults} of what it may reach did not answer"
    return f'tenancy "{found.tenancy}" is isolated: {refused} of {refused} forbidden connections were refused{rest}'


@group.command(name="suspend")
@_argument
@options.pass_client
def suspend_verb(client: Client, *, name: str) -> None:
    """Stop a tenancy's containers and accept no new ones; volumes and records stay."""
    client.call("POST", f"{_path(name)}/:suspend", TenancyView)


@group.command(name="resume")
@_argument
@options.pass_client
def resume_verb(client: Client, *, name: str) -> None:
    """Accept a tenancy's containers again; those that were stopped are not started."""
    client.call("POST", f"{_path(name)}/:resume", TenancyView)


@group.command(name="login")
@_argument
@click.argument("registry", metavar="REGISTRY")
@click.option("-u", "--username", required=True, help="user name of the tenancy at the registry")
@click.option("--password-stdin", is_flag=True, help="read password or token from standard input, one line")
@options.pass_client
def login_verb(client: Client, /, *, name: str, registry: str, username: str, password_stdin: bool) -> None:
    """Store a registry password or token for a tenancy's image pulls; it is never shown again.

    REGISTRY is a host, with a port and path where it has them: registry.example:5000/team.
    """
    is_typed = not password_stdin and sys.stdin.isatty()
    text = click.prompt("Password", hide_input=True, err=True) if is_typed else sys.stdin.readline(_MOST)
    request = RegistryRequest(registry=registry, username=username, password=text.rstrip("\r\n"))
    client.call("PUT", f"{_path(name)}/registry", TenancyView, body=request)


@group.command(name="logout")
@_argument
@click.argument("registry", metavar="REGISTRY")
@options.pass_client
def logout_verb(client: Client, *, name: str, registry: str) -> None:
    """Remove a tenancy's password or token for a registry."""
    client.call("DELETE", f"{_path(name)}/registry", TenancyView, params={"registry": registry})


@group.command(name="delete")
@_argument
@click.option("--wait/--no-wait", "waits", default=True, show_default=True, help="return once it is gone")
@options.pass_client
def delete_verb(client: Client, *, name: str, waits: bool) -> None:
    """Delete a tenancy: its containers, volumes, namespace and network."""
    found = client.call("DELETE", _path(name), TenancyView)
    if waits:
        _waited(client, found, state="gone", limit_s=None)


def _waited(client: Client, item: TenancyView, *, state: str, limit_s: float | None) -> TenancyView:
    """Return a tenancy once it is in a state, or when the time is over; of one that is gone what was last seen."""
    shown, spent = item, 0.0
    with progress.Progress() as waiting:
        while limit_s is None or spent < limit_s:
            if state == "ready" and shown.phase in {kind.READY, kind.SUSPENDED}:
                break
            waiting.show(f'tenancy "{item.name}": {shown.problem or shown.phase}')
            try:
                step_s = 1.0 if spent < _STEP_S else 5.0
                params = {"state": state, "timeout": step_s}
                fresh = client.call("GET", f"{_path(item.name)}/wait", TenancyView, params=params)
            except errors.NotFound:
                break
            if fresh.uid != item.uid:
                break
            shown, spent = fresh, spent + step_s
    return shown


def _path(name: str) -> str:
    return item_path("/v1/tenancies", name)


def _show(found: Sequence[TenancyView], form: str) -> None:
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.name)
