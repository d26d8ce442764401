"""Says how verbs that ask no service reach the simulated GPUs of the one that runs here."""

from __future__ import annotations

import contextlib

from fairlead import errors
from fairlead.cli.core import connection, invocation


def hint(call: invocation.Invocation, flag: str) -> str:
    """Return the line's flag that means the GPUs which the service here simulates; empty: no service simulates any."""
    with contextlib.suppress(errors.FairleadError):
        if not call.target().is_cluster:
            with connection.opened(call) as client:
                found = client.status()
            if found.is_simulated and found.profile:
                return f"the service here simulates its GPUs: {flag} {found.profile} means those"
    return ""
