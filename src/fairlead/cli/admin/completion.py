"""`fairlead completion`: prints the script that completes verbs, options and container names."""

from __future__ import annotations

from typing import Final

import click
from click import shell_completion

from fairlead.cli.core import plaintext

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
    plaintext.echo(script(ctx.find_root().command, shell))


def script(root: click.Command, shell: str) -> str:
    """Return the script that completes a command in one of the shells: bash, zsh, fish."""
    kind = shell_completion.get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f'no completion for shell "{shell}"')
    maker = kind(root, {}, "fairlead", _VARIABLE)
    # Not source(): for bash it starts one to ask for its version, and may be called where there is none.
    return str(maker.source_template % maker.source_vars())
