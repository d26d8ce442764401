"""`fairlead ps`: lists containers."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container import explain
from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.core.terminal import gotemplate
from fairlead.plan.pod import podstate
from fairlead.serve.v1.containers.life import waiting
from fairlead.serve.v1.containers.view import IDLE_UNKNOWN, ContainerView


def gpus_of(item: ContainerView) -> str:
    """Return how many GPUs a container has, of how many it asked for where it has not all of them."""
    met = {name: item.resources.get(name, 0) for one in item.claims if one.devices for name in one.resources}
    claimed = {
        f"claim {one.name}": len(one.devices) - sum(met.get(name, 0) for name in one.resources) for one in item.claims
    }
    asked = podstate.say_devices({**item.resources, **claimed})
    granted = podstate.say_devices({**{name: len(ids) for name, ids in item.devices.items()}, **met, **claimed})
    return asked if granted in {"0", asked} else f"{granted}/{asked}"


def _state(item: ContainerView) -> str:
    if item.state == "failed" and item.exit_code:
        return f"failed ({item.exit_code})"
    return item.state


def _health(item: ContainerView) -> str:
    """Return the worst that health checks say of its containers; empty: none is made."""
    said = {part.health for part in item.containers}
    return next((word for word in ("unhealthy", "starting", "healthy") if word in said), "")


def _shown_state(item: ContainerView) -> str:
    health = _health(item)
    return f"{_state(item)} ({health})" if health else _state(item)


def _reason(item: ContainerView) -> str:
    """Return why it is in its state; of one that waits its place in the queue, or that it never fits."""
    if _is_idle(item) and item.idle is not None:
        return _idle(item.idle.acts_at)
    waits = item.waiting
    if waits is None or waits.reason == waiting.OTHER:
        return item.reason
    if waits.reason == waiting.NEVER:
        return "never fits"
    return f"{waiting.ordinal(waits.place)} in queue" if waits.place else item.reason


def _is_idle(item: ContainerView) -> bool:
    return item.state == "running" and item.idle is not None and item.idle.action != IDLE_UNKNOWN


def _idle(acts_at: str | None) -> str:
    """Return that GPUs are idle, and how long it takes until the container is ended for it."""
    if acts_at is None:
        return "idle GPUs"
    left = dt.datetime.fromisoformat(acts_at) - dt.datetime.now(dt.UTC)
    return f"idle GPUs, ends in {output.span(max(0.0, left.total_seconds()))}"


def _message(item: ContainerView) -> str:
    if _is_idle(item) and item.idle is not None:
        return item.idle.message
    return item.waiting.message if item.waiting is not None else item.message


def _limit(item: ContainerView) -> str:
    return "" if item.time_limit_s is None else output.span(item.time_limit_s)


def _devices(item: ContainerView) -> str:
    return ",".join(device for ids in item.devices.values() for device in ids)


_LONGEST_NUMBER: Final = 10
"""Most digits of a number of containers."""
_NAMESPACE: Final = Column[ContainerView]("NAMESPACE", lambda item: item.namespace, is_wide=True)
_OWNER: Final = Column[ContainerView]("OWNER", lambda item: item.user or item.namespace)
_COLUMNS: Final = (
    Column[ContainerView]("NAME", lambda item: item.name),
    _NAMESPACE,
    Column[ContainerView]("STATE", _shown_state),
    Column[ContainerView]("REASON", _reason),
    Column[ContainerView]("GPUS", gpus_of),
    Column[ContainerView]("NODE", lambda item: item.node, rank=2),
    Column[ContainerView]("RESTARTS", lambda item: str(item.restarts), rank=3),
    Column[ContainerView]("AGE", lambda item: output.age(item.created_at)),
    Column[ContainerView]("IMAGE", lambda item: item.image, rank=1),
    Column[ContainerView]("PRIORITY", explain.priority, is_wide=True),
    Column[ContainerView]("LIMIT", _limit, is_wide=True),
    Column[ContainerView]("ADDRESSES", lambda item: ",".join(item.addresses), is_wide=True),
    Column[ContainerView]("PORTS", lambda item: ",".join(item.ports), is_wide=True),
    Column[ContainerView]("DEVICES", _devices, is_wide=True),
    Column[ContainerView]("ISOLATION", lambda item: item.isolation, is_wide=True),
    Column[ContainerView]("MESSAGE", _message, is_wide=True),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("-a", "--all", "show_ended", is_flag=True, help="ended ones too")
@click.option("-q", "--quiet", is_flag=True, help="names only, one a line")
@click.option(
    "--filter", "filters", multiple=True, metavar="KEY=VALUE", help="only those with this name, status, label or node"
)
@click.option("--format", "template", help="a Go template, as docker has it: '{{.Names}} {{.Status}}'")
@click.option("--no-trunc", is_flag=True, help="cut nothing, as -o wide does")
@click.option("-A", "--all-namespaces", is_flag=True, help="of all namespaces, as it is without -n")
@click.option("-w", "--watch", is_flag=True, help="show it anew until Ctrl-C")
@click.option("-l", "--label", "labels", multiple=True, metavar="KEY=VALUE", help="only those with this label")
@click.option("-n", "--namespace", default=None, help="only this namespace  [default: all]")
@options.tenancy_option
@options.output_option
@options.pass_client
def ps(
    client: Client,
    /,
    *,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    filters: tuple[str, ...],
    form: str,
    **given: Any,
) -> None:
    """List containers."""
    wanted = [_filter(item) for item in filters]
    labels = (*labels, *(value for key, value in wanted if key == "label"))
    # What was asked for by name or by state is shown whether it has ended or not.
    every = given["show_ended"] or bool(names) or any(key == "status" for key, _ in wanted)
    namespace: str | None = given["namespace"]
    newest: int | None = None  # None: all
    # Docker's -n is a number of containers, ours the namespace.
    if namespace is not None and namespace.isdecimal() and len(namespace) < _LONGEST_NUMBER:
        newest, namespace, every = int(namespace), None, True

    def show() -> None:
        found = client.list_containers(show_ended=every, labels=labels, namespace=namespace)
        kept = [item for item in found if _is_kept(item, names, wanted)]
        kept = _newest(kept, newest)
        if given["template"]:
            gotemplate.show([fields(item) for item in kept], given["template"])
            return
        _show(kept, form="name" if given["quiet"] else "wide" if given["no_trunc"] and form == "table" else form)

    if given["watch"]:
        output.repeat(show)
    else:
        show()


def _newest(found: Sequence[ContainerView], count: int | None) -> list[ContainerView]:
    """Return the containers made last, the newest first; as they come where all are meant."""
    if count is None:
        return list(found)
    return sorted(found, key=lambda item: item.created_at or "", reverse=True)[:count]


def fields(item: ContainerView) -> Mapping[str, Any]:
    """Return a container's values under the names of docker's `ps --format`, and our own."""
    return {
        "ID": item.uid,
        "Names": item.name,
        "Image": item.image,
        "Status": _shown_state(item),
        "Health": _health(item),
        "State": item.state,
        "Ports": ", ".join(item.ports),
        "Labels": dict(item.labels),
        "CreatedAt": item.created_at or "",
        "RunningFor": output.age(item.created_at),
        "Name": item.name,
        "Namespace": item.namespace,
        "User": item.user,
        "Node": item.node,
        "Reason": item.reason,
        "Message": item.message,
        "GPUs": item.gpus if len(item.resources) < 2 else podstate.say_devices(item.resources),
        "Devices": [device for ids in item.devices.values() for device in ids],
        "Restarts": item.restarts,
        "Isolation": item.isolation,
        "ExitCode": item.exit_code,
    }


_FILTERS: Final[Mapping[str, Callable[[ContainerView, str], bool]]] = {
    "label": lambda _item, _value: True,  # the service looks at labels
    "name": lambda item, value: value in item.name,
    "node": lambda item, value: item.node == value,
    "status": lambda item, value: item.state in _STATES.get(value, (value,)),
}
_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "created": ("pending", "creating"),
    "exited": ("succeeded", "failed", "stopped"),
    "restarting": ("crashed",),
}
"""Our words for docker's states."""


def _filter(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or key not in _FILTERS:
        message = f'filter "{text}" is not of the form KEY=VALUE with one of the keys {", ".join(_FILTERS)}'
        raise errors.Invalid(message, reason="FilterInvalid", hint="--filter status=running")
    return key, value


def _is_kept(item: ContainerView, names: tuple[str, ...], wanted: Sequence[tuple[str, str]]) -> bool:
    return (not names or item.name in names) and all(_FILTERS[key](item, value) for key, value in wanted)


def _show(found: Sequence[ContainerView], *, form: str) -> None:
    columns: tuple[Column[ContainerView], ...] = _COLUMNS
    users = any(item.user for item in found)
    if form == "wide" and users:
        columns = (_COLUMNS[0], _OWNER, *_COLUMNS[1:])
    elif len({item.namespace for item in found}) > 1:  # names alone would not say which is meant
        shown = _OWNER if users else dataclasses.replace(_NAMESPACE, is_wide=False)
        columns = tuple(shown if column is _NAMESPACE else column for column in _COLUMNS)
    output.show_listing(found, columns, form=form, name=lambda item: item.name)
