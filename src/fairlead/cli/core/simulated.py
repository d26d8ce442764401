"""Suggests the flag with which verbs that use no service reach the simulated GPUs of the running service."""

from __future__ import annotations

import contextlib

from fairlead import errors
from fairlead.cli.core import connection, invocation


def hint(call: invocation.Invocation, flag: str) -> str:
    """Return the flag to add for the GPUs that the service on this machine simulates; empty: it simulates none."""
    with contextlib.suppress(errors.FairleadError):
        if not call.target().is_cluster:
            with connection.opened(call) as client:
                found = client.status()
            if found.is_simulated and found.profile:
                return f"the service here simulates its GPUs: {flag} {found.profile} means those"
    return ""
