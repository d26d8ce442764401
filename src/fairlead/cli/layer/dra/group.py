"""`fairlead dra …`: looks at objects of Dynamic Resource Allocation (resource.k8s.io), without any service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.layer.dra import evaluate, explain, given, note, published, read, report, source
from fairlead.plan.cel import compile as cel
from fairlead.plan.claim import gate
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

F = TypeVar("F", bound=Callable[..., Any])

_CHECKED: Final = read.Kinds(
    needed=(ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass),
    beside=(DeviceTaintRule, ResourcePoolStatusRequest),
)
_PUBLISHED: Final = read.Kinds(needed=(ResourceSlice,), beside=(DeviceTaintRule,))
_FREE: Final = read.Kinds(needed=(ResourceSlice, ResourceClaim), beside=(DeviceTaintRule,), of_one_namespace=True)
_GIVEN: Final = read.Kinds(needed=(ResourceClaim,), of_one_namespace=True)
_EXPLAINED: Final = read.Kinds(
    needed=(ResourceSlice, ResourceClaim, DeviceClass),
    beside=(ResourceClaimTemplate, DeviceTaintRule, core.Node, core.Pod),
    of_one_namespace=True,
)
_EVALUATED: Final = read.Kinds(needed=(ResourceSlice,))

_gates = click.option(
    "--feature-gate",
    "gates",
    metavar="NAME=BOOL",
    multiple=True,
    help="feature gate of the cluster that is not as 1.37 has it, repeatable: " + ", ".join(gate.NAMES),
)
_release = click.option(
    "--release",
    type=click.Choice(cel.RELEASES),
    default=cel.RELEASES[-1],
    show_default=True,
    help="release of Kubernetes whose costs of expressions count",
)
_every = click.option("--all", "every", is_flag=True, help="show everything, however much it is")


@click.group("dra")
def group() -> None:
    """Look at devices and claims of Dynamic Resource Allocation."""


def _show(value: Any, lines: Iterable[str], form: str) -> None:
    if form in {"json", "yaml"}:
        output.show_value(value, form=form)
        return
    for line in lines:
        plaintext.echo(line)


@group.command()
@source.source_options
@_gates
@options.output_option
@click.pass_context
def check(ctx: click.Context, *, names: Sequence[str], gates: Sequence[str], form: str) -> None:
    """Say what an API server of Kubernetes 1.37 would refuse or drop, and what is wrong between objects.

    Exits with 1 where anything is wrong.
    """
    chosen = gate.chosen(gates)
    found = report.judge(source.objects(names, _CHECKED), chosen)
    _show(found, report.lines(found), form)
    ctx.exit(1 if found.is_wrong else 0)


@group.command()
@click.option("--devices", "has_devices", is_flag=True, help="with each device: attributes, capacity, taints")
@_gates
@_every
@source.source_options
@options.json_option
def slices(*, has_devices: bool, gates: Sequence[str], every: bool, names: Sequence[str], form: str) -> None:
    """List what drivers publish: pools, whether anything can be allocated of them, and why not."""
    chosen = gate.chosen(gates)
    found = published.published(source.objects(names, _PUBLISHED), chosen, has_devices=has_devices, every=every)
    _show(found, published.lines(found), form)


@group.command()
@click.option("-n", "--namespace", default="", help="claims of this namespace  [default: all]")
@_every
@source.source_options
@options.json_option
def claims(*, namespace: str, every: bool, names: Sequence[str], form: str) -> None:
    """List claims: what each waits for, or which devices it has, where, and for whom."""
    found = given.given(source.objects(names, _GIVEN), namespace=namespace, every=every)
    _show(found, given.lines(found), form)


@group.command()
@click.option(
    "--partition-type",
    "attribute",
    metavar="ATTRIBUTE",
    help="count partitions by this attribute where slices name none",
)
@_gates
@_every
@source.source_options
@options.json_option
def free(*, attribute: str | None, gates: Sequence[str], every: bool, names: Sequence[str], form: str) -> None:
    """List what is free of each pool, counted as a ResourcePoolStatusRequest is answered."""
    chosen = gate.chosen(gates)
    found = published.free(source.objects(names, _FREE), chosen, attribute=attribute, every=every)
    _show(found, published.free_lines(found), form)


@group.command("eval")
@click.argument("expression")
@click.option("--device", "chosen", metavar="DRIVER/POOL/NAME", multiple=True, help="only this device, repeatable")
@_release
@_every
@source.source_options
@options.json_option
@click.pass_context
def evaluate_(
    ctx: click.Context,
    *,
    expression: str,
    chosen: Sequence[str],
    release: str,
    every: bool,
    names: Sequence[str],
    form: str,
) -> None:
    """Evaluate a CEL EXPRESSION on published devices: its value and its cost for each.

    Exits with 1 where it fails on any device.
    """
    selector = evaluate.compiled(expression, release)
    objects = source.objects(names, _EVALUATED)
    devices, left_out = evaluate.devices(objects.of(ResourceSlice), chosen)
    found = evaluate.evaluate(selector, devices, left_out=(*left_out, *note.unread(objects)))
    _show(evaluate.plain(found, every=every), evaluate.lines(found, every=every), form)
    ctx.exit(1 if found.has_failed else 0)


@group.command("explain")
@click.argument("name", metavar="CLAIM|POD")
@click.option("-n", "--namespace", default="", help="namespace of the claim or pod  [default: any]")
@_gates
@_release
@_every
@source.source_options
@options.json_option
@click.pass_context
def explain_(
    ctx: click.Context,
    *,
    name: str,
    namespace: str,
    gates: Sequence[str],
    release: str,
    every: bool,
    names: Sequence[str],
    form: str,
) -> None:
    """Say why a claim, or a pod's claims, wait: they are tried on each node beside what other claims have.

    CLAIM|POD is NAME, NAMESPACE/NAME, claim/NAME or pod/NAME. Nothing is allocated.

    Exits with 1 where it waits and fits on no node.
    """
    asked = explain.Asked(gates=gate.chosen(gates), release=release, every=every)
    found = explain.explain(source.objects(names, _EXPLAINED), name, namespace, asked)
    _show(found, explain.lines(found), form)
    ctx.exit(1 if found.waits and not found.fits else 0)
