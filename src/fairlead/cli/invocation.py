"""What one call of the program was given before its verb: files, addresses, the environment.

The environment is read here and nowhere else (`cli.main` hands it in). Settings and the client are made when a verb
asks for them, so that verbs which need neither pay for neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fairlead.cli.client import Client
    from fairlead.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The root's flags and the environment."""

    env: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None
    """None: FAIRLEAD_CONFIG, else the default file where there is one."""
    url: str | None = None
    """None: FAIRLEAD_URL, else the API socket of the settings."""

    def file(self) -> Path:
        """Return the settings file in force."""
        from fairlead import settings

        chosen = self.env.get("FAIRLEAD_CONFIG")
        return self.config or (Path(chosen) if chosen else settings.DEFAULT_FILE)

    def settings(self, flags: Mapping[str, Any] | None = None) -> Settings:
        """Load the settings, flags of the verb over environment over file. Raises: Invalid."""
        from fairlead import settings

        return settings.load(flags=flags or {}, env=self.env, file=self.file())

    def address(self) -> str:
        """Return where the service is."""
        return self.url or self.env.get("FAIRLEAD_URL") or f"http+unix://{self.settings().api_socket}"

    def client(self) -> Client:
        """Return a client of the service; it connects with its first request."""
        from fairlead.cli import client

        return client.Client(self.address())


def current(ctx: click.Context) -> Invocation:
    """Return the invocation a verb belongs to."""
    found = ctx.find_object(Invocation)
    return found if found is not None else Invocation()
