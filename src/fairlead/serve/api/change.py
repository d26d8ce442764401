"""Declares what routes that change something share: waiting for what comes of it, and only trying it."""

from __future__ import annotations

from typing import Annotated

from litestar import openapi, params

Wait = Annotated[
    float | None,
    params.QueryParameter(
        ge=0, le=3600, description="answer once it has come to that, after so many seconds at the latest; empty: now"
    ),
]
DryRun = Annotated[
    bool, params.QueryParameter(description="check everything, store nothing, and answer 200 with what would be")
]


def would_be(kind: type) -> openapi.ResponseSpec:
    """Describe the answer of a route with `dry_run`."""
    return openapi.ResponseSpec(kind, generate_examples=False, description="with dry_run: what would be stored")
