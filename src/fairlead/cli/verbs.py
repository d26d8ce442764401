"""Which verbs there are, known without importing any of them.

`VERBS` is the whole command line: section, target and one line of help. A verb's module is imported when the verb is
called (or its own `--help` is asked for), so that `fairlead --help` and completion cost no more than click itself.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final

import click


@dataclass(frozen=True, slots=True)
class Verb:
    """One row of the table."""

    section: str
    target: str
    """`module:attribute` below `fairlead.cli`."""
    help: str
    is_hidden: bool = False


_RUN, _LOOK, _MACHINE, _LAYER = "Containers", "Look", "Machine", "Single layers and this program"


def load(target: str) -> click.Command:
    """Import the command at `module:attribute` below `fairlead.cli`."""
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(f"fairlead.cli.{module}"), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{target} is no command")
    return command


VERBS: Final = {
    "run": Verb(_RUN, "container.run:run", "Run a container, follow its output, exit with its code."),
    "ps": Verb(_RUN, "container.containers:ps", "List containers."),
    "logs": Verb(_RUN, "container.logs:logs", "Show what a container wrote."),
    "exec": Verb(_RUN, "container.exec:execute", "Run one more process in a container."),
    "stop": Verb(_RUN, "container.containers:stop", "Stop containers and keep their records."),
    "rm": Verb(_RUN, "container.containers:rm", "Stop and remove containers."),
    "wait": Verb(_RUN, "container.containers:wait", "Wait for a container and exit with its code."),
    "attach": Verb(_RUN, "container.attach:attach", "Give a running container a GPU that is free."),
    "detach": Verb(_RUN, "container.attach:detach", "Take a GPU from a running container."),
    "trace": Verb(_RUN, "container.trace:trace", "Show every step from the silicon to the process."),
    "explain": Verb(_RUN, "container.containers:explain", "Say why a container waits, failed or runs where it does."),
    "image": Verb(_RUN, "container.image:image", "List, build, import and remove images."),
    "gpus": Verb(_LOOK, "view.views:gpus", "List GPUs and who holds them."),
    "topology": Verb(_LOOK, "view.views:topology", "Show how GPUs are linked."),
    "nodes": Verb(_LOOK, "view.views:nodes", "List nodes, what they have and what is taken."),
    "events": Verb(_LOOK, "view.views:events", "List or follow what happened."),
    "status": Verb(_LOOK, "view.views:status", "Show how the service is."),
    "quota": Verb(_MACHINE, "admin.quota:group", "Limit what a namespace's containers ask for together."),
    "up": Verb(_MACHINE, "process.up:up", "Run Fairlead on this machine until Ctrl-C."),
    "down": Verb(_MACHINE, "process.down:down", "Stop and remove all containers, then the service."),
    "agent": Verb(_MACHINE, "process.agent:agent", "Serve this node's GPUs to a kubelet."),
    "manifests": Verb(_MACHINE, "admin.manifests:manifests", "Print what runs on a cluster."),
    "scheduler": Verb(_MACHINE, "process.controllers:scheduler", "Bind a cluster's pods that name this scheduler."),
    "controller": Verb(_MACHINE, "process.controllers:controller", "Keep Fairlead's objects in a cluster true."),
    "withdraw": Verb(_MACHINE, "process.controllers:withdraw", "Remove what agents published in a cluster."),
    "doctor": Verb(_MACHINE, "doctor.local:doctor", "Check every layer and say how to mend it."),
    "simulate": Verb(_MACHINE, "layer.simulate:simulate", "Break simulated GPUs, list faults and profiles."),
    "kubelet": Verb(_MACHINE, "process.kubelet:kubelet", "Play the kubelet's part on one machine.", is_hidden=True),
    "runtime": Verb(_LAYER, "layer.runtime:group", "Configure engines for GPUs; links that systemd needs."),
    "isolate": Verb(_LAYER, "layer.isolate:group", "Read, audit and repair what the kernel enforces for containers."),
    "cdi": Verb(_LAYER, "layer.cdi:group", "Generate, list and validate CDI specs."),
    "settings": Verb(
        _LAYER, "admin.settings_verb:settings_verb", "Show the settings in force and where they come from."
    ),
    "completion": Verb(_LAYER, "core.completion:completion", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """A group whose commands are rows of `VERBS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the verbs in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Import one verb; None for a name that is not in the table."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        return load(verb.target)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 as above
        """Write the table, section by section, without importing a verb."""
        for section in dict.fromkeys(verb.section for verb in VERBS.values()):
            with formatter.section(section):
                rows = [
                    (name, verb.help) for name, verb in VERBS.items() if verb.section == section and not verb.is_hidden
                ]
                formatter.write_dl(rows, col_max=14)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Offer verbs from the table; options as every group does."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            click.shell_completion.CompletionItem(name, help=verb.help)
            for name, verb in VERBS.items()
            if name.startswith(incomplete) and not verb.is_hidden
        ]
