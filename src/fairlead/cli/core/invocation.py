"""Holds what one call of the program was given before its verb: files, addresses, the environment.

The environment is read here and nowhere else (`cli.main` hands it in). Settings are read when a verb
asks for them, so that verbs which need none pay for none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.frozen import frozen

if TYPE_CHECKING:
    from fairlead.cli.core.target import Target
    from fairlead.client.contexts import Contexts
    from fairlead.settings import Settings


@frozen
class Invocation:
    """The root's flags and the environment."""

    env: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None
    """None: FAIRLEAD_CONFIG, else the default file where there is one."""
    url: str | None = None
    """None: FAIRLEAD_URL, else as `target` says."""
    kubeconfig: Path | None = None
    context: str | None = None
    show_request: bool = False
    """Print each request before it is sent."""

    @property
    def is_plain(self) -> bool:
        """Whether output has no colours: NO_COLOR is set (no-color.org), or the terminal is dumb."""
        return bool(self.env.get("NO_COLOR")) or self.is_dumb

    @property
    def is_dumb(self) -> bool:
        """Whether the terminal can move no cursor, so that nothing on it is written over."""
        return self.env.get("TERM") == "dumb"

    def file(self) -> Path:
        """Return the settings file in force."""
        from fairlead import settings

        chosen = self.env.get("FAIRLEAD_CONFIG")
        return self.config or (Path(chosen) if chosen else settings.DEFAULT_FILE)

    def settings(self, flags: Mapping[str, Any] | None = None) -> Settings:
        """Load the settings, flags of the verb over environment over file. Raises: Invalid."""
        from fairlead import settings

        found = settings.load(flags=flags or {}, env=self.env, file=self.file())
        is_console = found.log.format == "console" or (found.log.format == "auto" and sys.stderr.isatty())
        return settings.override(found, {"log.format": "plain"}) if is_console and self.is_plain else found

    def target(self) -> Target:
        """Return where verbs go. Raises: UsageError: two places were named; Invalid: the settings are wrong."""
        from fairlead.cli.core import target

        config = self.settings()
        return target.choose(
            target.Named(url=self.url, kubeconfig=self.kubeconfig, context=self.context),
            self.env,
            kubeconfig=config.cluster.kubeconfig,
            context=config.cluster.context,
            socket=config.api_socket,
            is_served=is_served(config.api_socket),
            logins=self.logins(),
        )

    def logins(self) -> Contexts | None:
        """Return where the person is logged in; None: nowhere. Raises: as `contexts.read`."""
        from fairlead.client import credentials

        file = credentials.file(self.env)
        if not file.exists() and not self.env.get("FAIRLEAD_CONTEXT"):
            return None  # and nothing of it is loaded
        from fairlead.client import contexts, credentials

        return contexts.read(file)

    def cluster_settings(self, meant: Target) -> Settings:
        """Return the settings with the cluster that is meant."""
        from fairlead import settings

        chosen = {"cluster.kubeconfig": meant.kubeconfig, "cluster.context": meant.context or ""}
        return settings.override(self.settings(), chosen)


def is_served(path: Path) -> bool:
    """Return whether a service listens at a socket; one that may not be opened counts, its refusal says more."""
    import socket

    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except PermissionError:
            return True
        except OSError:
            return False
    return True


def current(ctx: click.Context) -> Invocation:
    """Return the invocation a verb belongs to."""
    found = ctx.find_object(Invocation)
    if found is not None:
        return found
    # A shell that completes calls no verb and not the root either: its flags are parsed, its environment is its object.
    root = ctx.find_root()
    env = root.obj if isinstance(root.obj, Mapping) else {}
    given: dict[str, Any] = {name: root.params.get(name) for name in ("config", "url", "kubeconfig", "context")}
    return Invocation(env=env, **given)
