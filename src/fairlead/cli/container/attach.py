"""`fairlead attach` and `detach`: give a running container a GPU, or take one from it.

`attach` with a container alone is docker's: it joins the terminal of the first process.

By name the service is asked, whose kubelet keeps the checkpoint. With `--pid` no service is needed, and any OCI
container of this machine will do: device rules and nodes are changed here, from CDI specs, as root. The node's kubelet
and the rules of other containers are checked first; the change is recorded nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from fairlead.cli.core import client as api
from fairlead.cli.core import connection, invocation, options, output, plaintext
from fairlead.cli.core.terminal import starting
from fairlead.serve.backend.deviceview import DeviceChanged, DeviceRequest

F = TypeVar("F", bound=Callable[..., Any])


def _arguments(function: F) -> F:
    options_ = (
        click.argument(
            "names",
            nargs=-1,
            required=True,
            metavar="CONTAINER [GPU]",
            shell_complete=options.complete_container_then_gpu,
        ),
        click.option(
            "--pid", type=int, help="a process of any container; then name the GPU alone, and no service is used"
        ),
        click.option("--spec-dir", "spec_dirs", multiple=True, metavar="DIR", help="with --pid: folder of CDI specs"),
        click.option("-c", "--container", default="", help="which container of a group  [default: the first]"),
        click.option("--resource", default="", help="extended resource  [default: that of whole GPUs]"),
        options.namespace_option,
        options.cluster_options,
        options.json_option,
        click.pass_context,
    )
    for option in reversed(options_):
        function = option(function)
    return function


@click.command()
@_arguments
def attach(ctx: click.Context, /, **asked: Any) -> None:
    """Give a running container a free GPU; without one join its terminal.

    Ctrl-P Ctrl-Q leaves the terminal, and the container runs on.
    """
    if len(asked["names"]) == 1 and not asked["pid"]:
        _join(ctx, asked["names"][0], asked["namespace"], asked["container"])
    _run(ctx, "attach", is_forced=False, **asked)


@click.command()
@_arguments
@click.option("--force", "is_forced", is_flag=True, help="end processes that have it open")
def detach(ctx: click.Context, /, *, is_forced: bool, **asked: Any) -> None:
    """Take a GPU from a running container."""
    _run(ctx, "detach", is_forced=is_forced, **asked)


def _join(ctx: click.Context, name: str, namespace: str, container: str) -> NoReturn:
    from fairlead.cli.container.start import run  # giving a GPU does not pay for it

    with connection.opened(invocation.current(ctx)) as client:
        namespace = namespace or client.namespace
        starting.await_running(client, name, namespace, container)
        ctx.exit(run.join(client, name, namespace, container))


def _run(ctx: click.Context, action: str, *, is_forced: bool, form: str, **asked: Any) -> None:
    call, names = invocation.current(ctx), asked["names"]
    expected = 1 if asked["pid"] else 2
    if len(names) != expected:
        raise click.UsageError("name the GPU alone, beside --pid" if asked["pid"] else "name a container and a GPU")
    if asked["pid"]:
        # The layer is imported only where it is used: asking the service costs no hardware or spec code.
        import asyncio

        from fairlead.cli.container import attach_pid

        done = asyncio.run(
            attach_pid.change(
                call.settings(),
                action,
                asked["pid"],
                names[0],
                folders=asked["spec_dirs"],
                is_forced=is_forced,
            )
        )
    else:
        name, gpu = names
        body = DeviceRequest(gpu=gpu, resource=asked["resource"], container=asked["container"], force=is_forced)
        with connection.opened(call) as client:
            namespace = asked["namespace"] or client.namespace
            starting.await_running(client, name, namespace, asked["container"])
            done = client.call(
                "POST",
                f"{api.container_path(name)}:{action}",
                DeviceChanged,
                params={"namespace": namespace},
                body=body,
            )
    if form != "text":
        output.show_value(done, form=form)
        return
    _show(done, action)


def _show(done: DeviceChanged, action: str) -> None:
    has_it = action == "attach" and bool(done.nodes) and all(node.done == "kept" for node in done.nodes)
    if has_it:
        plaintext.echo(f"{done.container} has {done.device} already; nothing was changed")
        return
    plaintext.echo(f"{done.device} {'attached to' if action == 'attach' else 'detached from'} {done.container}")
    for node in done.nodes:
        said = done.opens.get(node.path)
        plaintext.echo(f"  {node.path}: {node.done}{f', open() says {said}' if said else ''}")
    for process in done.ended:
        plaintext.echo(f"  ended: {process.name} (pid {process.pid})")
    for text in done.unread:
        plaintext.echo(f"  not read: {text}")
