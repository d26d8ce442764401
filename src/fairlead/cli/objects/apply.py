"""`fairlead apply`, `delete` and `diff`: manifests and what they name, in kubectl's words."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.objects import sources
from fairlead.client.calls import item_path
from fairlead.serve.v1.objects.view import ObjectChange, ObjectChanges, ObjectList
from fairlead.wire.kubernetes.workloads import kinds

_DRY: Final = {"dry_run": "true"}
_AGAIN_S: Final = 0.3
_LEFT_OUT: Final = ("resourceVersion", "uid", "generation", "creationTimestamp")


@click.command()
@sources.with_files
@options.namespace_option
@click.option("--dry-run", is_flag=True, help="check everything, change nothing")
@click.option("-o", "--output", "form", type=click.Choice(["name", "json", "yaml"]), help="names, or the whole answer")
@options.pass_client
def apply(
    client: Client, /, *, sources: tuple[str, ...], recursive: bool, namespace: str, dry_run: bool, form: str | None
) -> None:
    """Make what manifests say, or bring what is there to it."""
    for _, content in _read(sources, recursive=recursive):
        params = {"namespace": namespace or None, **(_DRY if dry_run else {})}
        done = client.call("POST", "/v1/apply", ObjectChanges, params=params, content=content)
        for warning in done.warnings:
            plaintext.echo(f"warning: {warning}", err=True)
        _print(done.items, form, note=" (server dry run)" if dry_run else "")


def _read(named: Sequence[str], *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    return sources.read(named, recursive=recursive)


def _print(items: Sequence[ObjectChange], form: str | None, *, note: str = "") -> None:
    if form in {"json", "yaml"}:
        output.show_value(items, form=form)
        return
    for one in items:
        text = f"{one.kind}/{one.name}"
        plaintext.echo(text if form == "name" else f"{text} {one.action}{note}")


@click.command()
@click.argument("names", nargs=-1, metavar="[KIND NAME... | KIND/NAME...]")
@sources.with_files
@options.namespace_option
@click.option("--all", "every", is_flag=True, help="all objects of the kind in the namespace")
@click.option("--ignore-not-found", is_flag=True, help="what is not there is not an error")
@click.option("--wait/--no-wait", "waits", default=True, help="return once it is gone  [default: yes]")
@click.option("--timeout", type=options.Duration(), default=300, show_default=True, help="wait so long at most")
@options.pass_client
def delete(
    client: Client, /, *, names: tuple[str, ...], sources: tuple[str, ...], recursive: bool, **given: Any
) -> None:
    """Remove the objects of manifests, or named ones, with what they made."""
    namespace, done = given["namespace"], list[ObjectChange]()
    if bool(names) == bool(sources):
        raise click.UsageError("give -f FILE, or KIND NAME, one of them")
    if sources:
        for _, content in _read(sources, recursive=recursive):
            params = {"namespace": namespace or None}
            done += client.call("POST", "/v1/delete", ObjectChanges, params=params, content=content).items
    for kind, name in _named(client, names, namespace, every=given["every"]) if names else ():
        where = {"namespace": namespace or None}
        path = item_path(f"/v1/objects/{kind}", name)
        done.append(client.call("DELETE", path, ObjectChange, params=where))
    until = time.monotonic() + (given["timeout"] if given["waits"] else 0)
    done = [_freed(client, one, until) for one in done]
    missing = [one for one in done if one.action == "not found"]
    for one in done:
        if one.action == "deleted":
            plaintext.echo(f'{one.kind} "{one.name}" deleted')
    if given["waits"]:
        _wait(client, [one for one in done if one.action == "deleted"], until)
    if used := next((one for one in done if one.action == "in use"), None):
        message = f'{used.kind} "{used.name}" is in use'
        raise errors.Conflict(message, reason="VolumeInUse", hint="`fairlead get pods` shows by whom it may be")
    if missing and not given["ignore_not_found"]:
        first = missing[0]
        message = f'{first.kind} "{first.name}" not found'
        raise errors.NotFound(message, reason="NotFound", hint="--ignore-not-found: that is not an error")


def _freed(client: Client, one: ObjectChange, until: float) -> ObjectChange:
    """Return what became of an object; a volume in use is asked for again until its last pod is gone."""
    path = item_path(f"/v1/objects/{one.kind.partition('.')[0]}", one.name)
    while one.action == "in use" and time.monotonic() < until:
        time.sleep(_AGAIN_S)
        one = client.call("DELETE", path, ObjectChange, params={"namespace": one.namespace or None})
    return one


def _named(client: Client, names: Sequence[str], namespace: str, *, every: bool) -> list[tuple[str, str]]:
    """Return kinds and names: `deployment web db`, `deployment/web job/train`."""
    if all("/" in one for one in names):
        parts = [one.partition("/") for one in names]
        return [(kinds.find(kind).PLURAL, name) for kind, _, name in parts]
    kind = kinds.find(names[0])
    if every:
        found = client.call(
            "GET", f"/v1/objects/{kind.PLURAL}", ObjectList, params={"namespace": namespace or "default"}
        )
        return [(kind.PLURAL, str(one["metadata"]["name"])) for one in found.items]
    if len(names) < 2:
        raise click.UsageError(f"name the {kind.PLURAL}, or give --all")
    return [(kind.PLURAL, name) for name in names[1:]]


def _wait(client: Client, gone: Sequence[ObjectChange], until: float) -> None:
    """Return once objects are gone. Raises: Insufficient: they are not within the time."""
    for one in gone:
        kind = one.kind.partition(".")[0]
        while kind in _SHOWN:
            params = {"namespace": one.namespace or None, "name": one.name}
            left = client.call("GET", f"/v1/objects/{kind}", ObjectList, params=params).items
            if all(item["metadata"].get("uid") != one.uid for item in left):
                break  # what has its name now is another one
            if time.monotonic() > until:
                message = f"{one.kind}/{one.name} is not gone yet"
                raise errors.Insufficient(message, reason="WaitTimedOut", hint=f"`fairlead get {kind} {one.name}`")
            time.sleep(_AGAIN_S)


_SHOWN: Final = frozenset(kind.KIND.lower() for kind in kinds.KINDS)


@click.command()
@sources.with_files
@options.namespace_option
@options.pass_client
@click.pass_context
def diff(ctx: click.Context, client: Client, /, *, sources: tuple[str, ...], recursive: bool, namespace: str) -> None:
    """Show what `apply` would change; exit with 1 where it would change something."""
    differs = False
    for _, content in _read(sources, recursive=recursive):
        params = {"namespace": namespace or None, **_DRY}
        for one in client.call("POST", "/v1/apply", ObjectChanges, params=params, content=content).items:
            name = f"{one.kind}/{one.name}"
            lines = difflib.unified_diff(
                _lines(one.before), _lines(one.after), f"live/{name}", f"merged/{name}", lineterm=""
            )
            for line in lines:
                differs = True
                plaintext.echo(line)
    ctx.exit(1 if differs else 0)


def _lines(document: dict[str, Any] | None) -> list[str]:
    """Return an object as lines of YAML, without what the service fills in."""
    if document is None:
        return []
    import yaml

    about = {key: value for key, value in document.get("metadata", {}).items() if key not in _LEFT_OUT}
    shown = {key: value for key, value in {**document, "metadata": about}.items() if key != "status"}
    return str(yaml.safe_dump(shown, sort_keys=True, allow_unicode=True)).splitlines()
