"""`fairlead rollout` and `scale`: Deployments and StatefulSets while they change, in kubectl's words."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.client.calls import item_path
from fairlead.serve.v1.objects.view import ObjectChange, ObjectList
from fairlead.wire.kubernetes.workloads import kinds

_AGAIN_S: Final = 0.3
_HISTORY: Final = ("REVISION", "PODS", "CHANGE-CAUSE", "IMAGES")


def _parts(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return plural kinds and names: `deployment/web`, or `deployment web`."""
    if all("/" in one for one in words):
        return [(kinds.find(kind).PLURAL, name) for kind, _, name in (one.partition("/") for one in words)]
    if len(words) < 2:
        raise click.UsageError("name it: KIND/NAME")
    return [(kinds.find(words[0]).PLURAL, name) for name in words[1:]]


_WORDS = click.argument("words", nargs=-1, required=True, metavar="KIND/NAME...")


@click.group()
def rollout() -> None:
    """Watch a workload replace its pods, or have it do so."""


@rollout.command("status")
@_WORDS
@options.namespace_option
@click.option("--timeout", type=options.Duration(), default=0, help="give up after so long  [default: never]")
@options.pass_client
def status(client: Client, /, *, words: tuple[str, ...], namespace: str, timeout: float) -> None:
    """Wait until the pods of a Deployment or StatefulSet are new and serve."""
    until = time.monotonic() + timeout if timeout else None
    for plural, name in _parts(words):
        said = ""
        while True:
            text, is_done = _progress(plural, name, _find(client, plural, name, namespace))
            if text != said:
                plaintext.echo(text)
                said = text
            if is_done:
                break
            if until is not None and time.monotonic() > until:
                message = f"{plural}/{name} is not rolled out after {timeout:g} s"
                hint = "`fairlead get pods`, then `fairlead explain POD` says why one waits"
                raise errors.Insufficient(message, reason="WaitTimedOut", hint=hint)
            time.sleep(_AGAIN_S)


def _find(client: Client, plural: str, name: str, namespace: str) -> dict[str, Any]:
    if plural not in {"deployments", "statefulsets"}:
        message = f"{plural} are not rolled out"
        raise errors.RequestError(message, reason="WorkloadInvalid", hint="deployments and statefulsets are")
    params = {"namespace": namespace or "default", "name": name}
    found = client.call("GET", f"/v1/objects/{plural}", ObjectList, params=params).items
    if not found:
        message = f'{plural}.apps "{errors.readable(name[:260])}" not found'
        raise errors.NotFound(message, reason="NotFound", hint=f"`fairlead get {plural}` lists them")
    return found[0]


def _progress(plural: str, name: str, item: dict[str, Any]) -> tuple[str, bool]:
    """Return kubectl's line, and whether it is the last. Raises: Conflict: it has taken too long."""
    state, wanted = item.get("status", {}), int(item.get("spec", {}).get("replicas", 1))
    is_seen = state.get("observedGeneration", 0) >= item["metadata"].get("generation", 0)
    updated, available = int(state.get("updatedReplicas", 0)), int(state.get("availableReplicas", 0))
    total = int(state.get("replicas", 0))
    if not is_seen:
        return f"Waiting for {plural.removesuffix('s')} spec update to be observed...", False
    if plural == "statefulsets":
        ready = int(state.get("readyReplicas", 0))
        if updated < wanted or ready < wanted:
            return f"Waiting for {wanted - ready} pods to be ready...", False
        return (
            f"statefulset rolling update complete {updated} pods at revision {state.get('updateRevision', '')}...",
            True,
        )
    for one in state.get("conditions", ()):
        if one.get("reason") == "ProgressDeadlineExceeded":
            message = f'deployment "{name}" exceeded its progress deadline'
            raise errors.Conflict(
                message, reason="ProgressDeadlineExceeded", hint="`fairlead get pods` shows what waits"
            )
    begin = f'Waiting for deployment "{name}" rollout to finish:'
    if updated < wanted:
        text = f"{updated} out of {wanted} new replicas have been updated..."
    elif total > updated:
        text = f"{total - updated} old replicas are pending termination..."
    elif available < updated:
        text = f"{available} of {updated} updated replicas are available..."
    else:
        return f'deployment "{name}" successfully rolled out', True
    return f"{begin} {text}", False


@rollout.command("restart")
@_WORDS
@options.namespace_option
@options.pass_client
def restart(client: Client, /, *, words: tuple[str, ...], namespace: str) -> None:
    """Replace the pods of a Deployment or StatefulSet a few at a time."""
    _each(client, words, namespace, "restart", "restarted")


@rollout.command("pause")
@_WORDS
@options.namespace_option
@options.pass_client
def pause(client: Client, /, *, words: tuple[str, ...], namespace: str) -> None:
    """Keep a Deployment from replacing its pods when its template changes."""
    _each(client, words, namespace, "pause", "paused")


@rollout.command("resume")
@_WORDS
@options.namespace_option
@options.pass_client
def resume(client: Client, /, *, words: tuple[str, ...], namespace: str) -> None:
    """Have a paused Deployment go on."""
    _each(client, words, namespace, "resume", "resumed")


@rollout.command("undo")
@_WORDS
@click.option(
    "--to-revision",
    type=click.IntRange(0, 2**31),
    default=0,
    metavar="N",
    help="as `history` numbers them  [default: the one before the present one]",
)
@options.namespace_option
@options.pass_client
def undo(client: Client, /, *, words: tuple[str, ...], to_revision: int, namespace: str) -> None:
    """Give a Deployment the template of an earlier revision again."""
    _each(client, words, namespace, "undo", "rolled back", to_revision=to_revision)


def _each(client: Client, words: tuple[str, ...], namespace: str, verb: str, done: str, **params: int) -> None:
    """Ask for a change of each workload, and say that it was made."""
    for plural, name in _parts(words):
        path = f"{item_path(f'/v1/objects/{plural}', name)}:{verb}"
        changed = client.call("POST", path, ObjectChange, params={"namespace": namespace or None, **params})
        plaintext.echo(f"{changed.kind}/{changed.name} {done}")


@rollout.command("history")
@_WORDS
@options.namespace_option
@options.pass_client
def history(client: Client, /, *, words: tuple[str, ...], namespace: str) -> None:
    """List the revisions of a Deployment that it can be rolled back to."""
    for plural, name in _parts(words):
        if plural != "deployments":
            message = f"{plural} keep no revisions"
            raise errors.RequestError(message, reason="WorkloadInvalid", hint="deployments do")
        uid = _find(client, plural, name, namespace)["metadata"].get("uid")
        listed = client.call("GET", "/v1/objects/replicasets", ObjectList, params={"namespace": namespace or "default"})
        owned = [one for one in listed.items if uid in {of["uid"] for of in one["metadata"].get("ownerReferences", ())}]
        rows = sorted(map(_revision, owned), key=lambda row: int(row[0]))
        plaintext.echo(f"deployment.apps/{name}")
        for line in output.lines_of((_HISTORY, *rows)):
            plaintext.echo(line)


def _revision(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the line of one ReplicaSet."""
    marks = item["metadata"].get("annotations", {})
    number = str(marks.get("deployment.kubernetes.io/revision", "0"))
    images = ", ".join(one.get("image", "") for one in item["spec"]["template"]["spec"]["containers"])
    pods = str(item.get("status", {}).get("replicas", 0))
    return number if number.isdecimal() else "0", pods, marks.get("kubernetes.io/change-cause", "<none>"), images


@click.command()
@_WORDS
@click.option(
    "--replicas", type=click.IntRange(0, 1000), required=True, metavar="N", help="how many pods it is to have"
)
@options.namespace_option
@options.pass_client
def scale(client: Client, /, *, words: tuple[str, ...], replicas: int, namespace: str) -> None:
    """Set how many pods a Deployment or StatefulSet has."""
    for plural, name in _parts(words):
        path = f"{item_path(f'/v1/objects/{plural}', name)}:scale"
        params = {"namespace": namespace or None, "replicas": replicas}
        done = client.call("POST", path, ObjectChange, params=params)
        plaintext.echo(f"{done.kind}/{done.name} scaled")
