"""`fairlead notebook` and `fairlead shell`: containers that a person comes back to, with a home that is kept.

A session is an ordinary container of a template, with a volume at its home. Its token is made in the container at its
first start and lies in that home, readable by its user alone: it stands in no object and in no listing, and who may
enter the container may read it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import options, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import streams
from fairlead.client.session import forward, process
from fairlead.serve.admission import sessiontemplate
from fairlead.serve.admission.request import ContainerRequest
from fairlead.serve.admission.sessiontemplate import LABEL, Template, TemplateList
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerView

_SHELL: Final = ("sh", "-c", 'cd "$0" 2>/dev/null; command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l')
_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What a person asks for."""

    name: str
    namespace: str
    gpus: int | None
    """None: whatever the template has."""
    image: str
    """Empty: the template's."""


_name = click.argument("name", required=False, default="")
_image = click.option("--image", default="", help="image to use  [default: the template's]")
_gpus = click.option("-g", "--gpus", type=click.IntRange(min=0), help="GPUs  [default: the template's]")
_wait = click.option(
    "--wait", "patience", type=options.Duration(), default=300, help="how long to wait for its start  [default: 5m]"
)


@click.command()
@_name
@_gpus
@_image
@click.option("--template", default="notebook", show_default=True, metavar="NAME", help="what it is made of")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=0, help="port of this machine  [default: a free one]"
)
@click.option("-d", "--detach", is_flag=True, help="print how to get in, and return")
@_wait
@options.namespace_option
@options.pass_client
def notebook(
    client: Client,
    /,
    *,
    name: str,
    template: str,
    port: int,
    detach: bool,
    patience: float,
    **asked: Any,
) -> None:
    """Open a notebook: a container with a page and a kept home.

    It is started, or the one of this name is led to, and its address is printed until Ctrl-C.

    Its home is the volume NAME-home and stays. Ctrl-C ends the way to it and not the notebook: `fairlead stop NAME`
    does, and the same line starts it again.
    """
    name = name or template
    made = _template(client, template)
    if not made.port:
        message, hint = f'the template "{template}" serves no page', f"fairlead shell --template {template} {name}"
        raise errors.Invalid(message, reason="TemplateInvalid", hint=hint)
    shown = _opened(client, made, _Wish(name=name, **asked), patience)
    token = _token(client, made, shown) if made.token else ""
    page = made.path.replace("{token}", token)
    path = f"{api.container_path(name)}/ports/{made.port}"
    if detach:
        where = f" -n {shown.namespace}" if shown.namespace != "default" else ""
        plaintext.echo(f"fairlead port-forward{where} {name} {made.port}")
        plaintext.echo(f"http://127.0.0.1:{made.port}{page}")
        return
    params = {"namespace": shown.namespace}
    way = forward.Forward(client, path, params, address="127.0.0.1", local=port, report=_report)
    with way as found, contextlib.suppress(KeyboardInterrupt):
        plaintext.echo(f"http://{found.address}{page}")
        plaintext.echo(
            f"{name} goes on after Ctrl-C here; `fairlead stop {name}` ends it, and its home stays", err=True
        )
        threading.Event().wait()


@click.command()
@_name
@_gpus
@_image
@click.option("--template", default="shell", show_default=True, metavar="NAME", help="what it is made of")
@_wait
@options.namespace_option
@click.pass_context
@options.pass_client
def shell(
    client: Client,
    ctx: click.Context,
    /,
    *,
    name: str,
    template: str,
    patience: float,
    **asked: Any,
) -> None:
    """Open a shell in a container with a kept home.

    It is started, or the one of this name is led into.

    Its home is the volume NAME-home and stays. Leaving the shell does not end the container: `fairlead stop NAME`
    does, and the same line starts it again.
    """
    name = name or template
    made = _template(client, template)
    shown = _opened(client, made, _Wish(name=name, **asked), patience)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    params = [("command", word) for word in (*_SHELL, made.home)]
    params += [("tty", str(has_terminal).lower()), ("stdin", "true"), ("split", "true")]
    params += [("namespace", shown.namespace)]
    with client.connect(f"{api.container_path(name)}/exec", params) as connection:
        code = streams.carry(streams.Session(connection), stdin=True, terminal=has_terminal)
    plaintext.echo(f"{name} goes on; `fairlead stop {name}` ends it, and its home stays", err=True)
    ctx.exit(code)


def _template(client: Client, name: str) -> Template:
    """Return a template by its name. Raises: NotFound (`TemplateUnknown`)."""
    items = client.call("GET", "/v1/templates", TemplateList).items
    for one in items:
        if one.name == name:
            return one
    offered = ", ".join(one.name for one in items)
    message = f'there is no template "{errors.readable(name)}"'
    raise errors.NotFound(message, reason="TemplateUnknown", hint=f"one of {offered}; session.templates adds others")


def _opened(client: Client, template: Template, wish: _Wish, patience_s: float) -> ContainerView:
    """Return a session's container, running: made, started again, or found as it is.

    Raises: Conflict: the name is another container's; `SessionDiffers`; `SessionWaits`; as the service refuses.
    """
    try:
        shown = client.container(wish.name, wish.namespace)
    except errors.NotFound:
        shown = client.call("POST", "/v1/containers", ContainerView, body=_request(template, wish))
    else:
        _check(shown, template, wish)
        if shown.state in view.ENDED:
            path, params = f"{api.container_path(wish.name)}:restart", {"namespace": wish.namespace}
            shown = client.call("POST", path, ContainerView, params=params, timeout_s=None)
    return _running(client, shown, patience_s)


def _request(template: Template, wish: _Wish) -> ContainerRequest:
    return sessiontemplate.container(
        template, name=wish.name, namespace=wish.namespace, image=wish.image, gpus=wish.gpus
    )


def _check(shown: ContainerView, template: Template, wish: _Wish) -> None:
    """Refuse a name that is another container's, or a wish that the one that is there does not fulfil."""
    found = shown.labels.get(LABEL, "")
    if found != template.name:
        what = f"a session of the template {found}" if found else "no session"
        message = f'container "{shown.name}" is there already, and is {what}'
        raise errors.Conflict(message, reason="NameTaken", hint="choose another name")
    if wish.gpus not in {None, shown.gpus} or wish.image not in {"", shown.image}:
        message = f'"{shown.name}" is there with the image {shown.image}, GPUs: {shown.gpus}'
        hint = f"`fairlead rm -f {shown.name}` ends it, its home stays; then open it anew"
        raise errors.Conflict(message, reason="SessionDiffers", hint=hint)


def _running(client: Client, shown: ContainerView, patience_s: float) -> ContainerView:
    """Wait until a session runs. Raises: Conflict: `SessionWaits`, `SessionEnded`."""
    until = time.monotonic() + patience_s
    name, namespace = shown.name, shown.namespace
    with progress.Progress() as waiting:
        while shown.state != "running":
            if shown.state in view.STARTED:
                message = f'"{name}" ended: {shown.message or shown.reason or shown.state}'
                raise errors.Conflict(message, reason="SessionEnded", hint=f"`fairlead logs {name}` says why")
            why = shown.waiting.message if shown.waiting is not None else shown.message
            if time.monotonic() > until:
                message = f'"{name}" waits: {why or shown.state}'
                raise errors.Conflict(
                    message, reason="SessionWaits", hint=f"`fairlead explain {name}`; open it again later"
                )
            waiting.show(f"{name} is being started" + (f": {why}" if why else ""))
            shown = client.wait(name, namespace, state="started", timeout_s=_LOOK_S)
    return shown


def _token(client: Client, template: Template, shown: ContainerView) -> str:
    """Return a session's token, once its first process has made it. Raises: Unavailable (`TokenMissing`)."""
    params = [("command", word) for word in ("cat", sessiontemplate.token_file(template))]
    params += [("namespace", shown.namespace), ("split", "true")]
    until = time.monotonic() + _PATIENCE_S
    while True:
        done = process.run(client, f"{api.container_path(shown.name)}/exec", params, b"")
        text = done.text.strip()
        if done.exit_code == 0 and text.isalnum():
            return text
        if time.monotonic() > until:
            message = f'"{shown.name}" has made no token'
            raise errors.Unavailable(message, reason="TokenMissing", hint=f"`fairlead logs {shown.name}` says why")
        time.sleep(_LOOK_S)


def _report(error: errors.FairleadError) -> None:
    plaintext.echo(f"warning: a connection was not carried: {errors.sentence(error)}", err=True)
