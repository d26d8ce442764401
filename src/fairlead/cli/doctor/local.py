"""`fairlead doctor`: checks every layer from the bottom up and prints cause, consequence and fix.

Collecting and checking are apart: `machine_facts` asks the running service, or the layers themselves where none runs;
`machine_checks` is a pure function from facts to findings. The exit code is 1 if anything would keep a container from
its GPUs. Where a cluster is meant, `cluster_facts` collects and `cluster_checks` checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import click

from fairlead import telemetry
from fairlead.cli.core import invocation, options, output
from fairlead.cli.doctor import finding
from fairlead.cli.doctor import image as imageneeds
from fairlead.cli.doctor.finding import Finding


@click.command()
@click.option("--image", metavar="IMAGE", help="check this image's needs (NVIDIA_REQUIRE_*) and nothing else")
@options.json_option
@options.cluster_options
@click.pass_context
def doctor(ctx: click.Context, *, image: str | None, form: str) -> None:
    """Check every layer and say how to mend it."""
    call = invocation.current(ctx)
    telemetry.configure("error", "console")  # what layers report is a finding here, not a line beside the findings
    found = list(_findings(call) if image is None else imageneeds.check(imageneeds.collect(call, image)))
    if form != "text":
        output.show_value(found, form=form)
    else:
        for item in found:
            finding.show(item)
    ctx.exit(1 if any(item.level == "fail" for item in found) else 0)


def _findings(call: invocation.Invocation) -> Iterator[Finding]:
    meant = call.target()
    if not meant.is_cluster:
        # A machine's facts are imported where a machine is meant, a cluster's client where a cluster is.
        from fairlead.cli.doctor import machine_checks, machine_facts

        return machine_checks.check(machine_facts.collect(call))
    from fairlead.cli.core import cluster
    from fairlead.cli.doctor.cluster import checks as cluster_checks
    from fairlead.cli.doctor.cluster import facts as cluster_facts

    config = call.cluster_settings(meant)
    return cluster_checks.check(asyncio.run(cluster_facts.collect(config, cluster.access(config))))
