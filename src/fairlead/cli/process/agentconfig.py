"""`fairlead agent config`: chooses, by hand, which file of the folder of configurations is in force on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from fairlead import errors, settings
from fairlead.cli.core import options, plaintext
from fairlead.node.config import source

_LABELLED: Final = "this node's label {label}={name} stands above it: relabel the node instead"


@click.command("config")
@click.argument("name", required=False)
@click.option("--clear", is_flag=True, help="choose none: the configured default and the fallbacks decide again")
@options.settings_options("state", "plugin")
def config(config: settings.Settings, *, name: str | None, clear: bool) -> None:
    """Choose the configuration NAME of the folder of configurations for this machine; without NAME list them.

    A running agent, or `fairlead up`, takes it within a moment and needs no restart. On a cluster the node's label
    nvidia.com/device-plugin.config stands above this choice.
    """
    folder = config.plugin.config_folder
    if folder is None:
        message = "no folder of configurations is known"
        hint = "give the agent's --plugin-config-folder here too, or set FAIRLEAD_PLUGIN_CONFIG_FOLDER for both"
        raise errors.RequestError(message, reason="ConfigFolderUnknown", hint=hint)
    if name is not None and clear:
        raise errors.RequestError(f"{name} and --clear contradict each other", reason="ConfigChoiceUnclear")
    if clear:
        source.choice_file(config.state.folder).unlink(missing_ok=True)
        plaintext.echo("no configuration is chosen by hand any more")
    elif name is not None:
        _choose(config, folder, name)
    else:
        _list(config, folder)


def _choose(config: settings.Settings, folder: Path, name: str) -> None:
    names = source.list_files(folder)
    if name not in names:
        message = f'configuration "{name}" is not in {folder} (there: {", ".join(names) or "none"})'
        raise errors.NotFound(message, reason="ConfigNotFound", hint="`fairlead agent config` lists them")
    source.read_file(folder / name)
    source.write_choice(source.choice_file(config.state.folder), name)
    plaintext.echo(f"configuration {name} is chosen; a running agent takes it within a moment")
    if label := source.read_choice(source.label_file(config.state.folder)):
        plaintext.echo(f"warning: {_LABELLED.format(label=source.LABEL, name=label)}", err=True)


def _list(config: settings.Settings, folder: Path) -> None:
    chosen = source.read_choice(source.choice_file(config.state.folder))
    label = source.read_choice(source.label_file(config.state.folder))
    for name in source.list_files(folder):
        marks = [word for word, one in (("by label", label), ("by hand", chosen)) if one == name]
        plaintext.echo(f"{name} (chosen {', '.join(marks)})" if marks else name)
