"""`fairlead completion`: prints the script that completes verbs, options and container names."""

from __future__ import annotations

from typing import Final

import click
from click import shell_completion

_VARIABLE: Final = "_FAIRLEAD_COMPLETE"
_EXAMPLES: Final = """\b
Put it where your shell looks:
  fairlead completion bash > /etc/bash_completion.d/fairlead
  fairlead completion zsh > "${fpath[1]}/_fairlead"
  fairlead completion fish > ~/.config/fish/completions/fairlead.fish
"""


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = shell_completion.get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f'no completion for shell "{shell}"', ctx=ctx)
    root = ctx.find_root()
    maker = kind(root.command, {}, root.info_name or "fairlead", _VARIABLE)
    # Not source(): for bash it starts one to ask for its version, and may be called where there is none.
    click.echo(maker.source_template % maker.source_vars())
