"""`fairlead explain`: says why a container waits, failed or runs where it does."""

from __future__ import annotations

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers.view import Explanation


@click.command()
@options.container_argument()
@options.namespace_option
@options.json_option
@options.pass_client
def explain(client: Client, *, name: str, namespace: str, form: str) -> None:
    """Say why a container waits, failed or runs where it does."""
    found = client.explain(name, namespace)
    if form != "text":
        output.show_value(found, form=form)
        return
    for line in explanation_lines(found):
        plaintext.echo(line)


def explanation_lines(found: Explanation) -> list[str]:
    """Return an explanation as lines: the state and why, then each node and why it did or did not fit."""
    lines = [f"{found.name} is {found.state}: {found.summary}"]
    nodes = found.facts.get("nodes")
    if isinstance(nodes, list):
        rows = [node_row(node) for node in nodes if isinstance(node, dict)]
        lines += [f"  {line}" for line in output.lines_of(rows)]
    return lines


def node_row(node: dict[str, object]) -> list[str]:
    """Return one node of a scheduler's step as columns: name, whether it fits, score, why."""
    why = node.get("why")
    reasons = "; ".join(str(item) for item in why) if isinstance(why, (list, tuple)) else str(why or "")
    score = node.get("score")
    return [
        str(node.get("name", "?")),
        "fits" if node.get("fits") else "does not fit",
        f"score {score:g}" if isinstance(score, int | float) else "",
        reasons,
    ]
