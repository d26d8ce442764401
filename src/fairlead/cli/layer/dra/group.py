"""`fairlead dra …`: looks at objects of Dynamic Resource Allocation (resource.k8s.io), without any service."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.layer.dra import read, report
from fairlead.plan.claim import gate


@click.group("dra")
def group() -> None:
    """Check objects of Dynamic Resource Allocation."""


@group.command()
@click.option(
    "-f",
    "--file",
    "names",
    metavar="FILE",
    multiple=True,
    required=True,
    help="file of objects, YAML or JSON, - for standard input, repeatable",
)
@click.option(
    "--feature-gate",
    "gates",
    metavar="NAME=BOOL",
    multiple=True,
    help="feature gate of the API server that is not as 1.37 has it, repeatable: " + ", ".join(report.GATES),
)
@options.output_option
@click.pass_context
def check(ctx: click.Context, *, names: Sequence[str], gates: Sequence[str], form: str) -> None:
    """Say what an API server of Kubernetes 1.37 would refuse or drop, and what is wrong between objects.

    Of a cluster: kubectl get resourceslices,resourceclaims,deviceclasses -A -o json | fairlead dra check -f -

    Exits with 1 where anything is wrong.
    """
    found = report.judge(read.objects(names), report.gates(gates, gate.DEFAULTS))
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
    else:
        for line in report.lines(found):
            plaintext.echo(line)
    ctx.exit(1 if found.is_wrong else 0)
