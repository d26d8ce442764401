"""Declares the parameters that routes of one container share."""

from __future__ import annotations

from typing import Annotated

from litestar import params

from fairlead.plan.pod import userrule

Name = Annotated[str, params.PathParameter(description="name of the container")]
Follow = Annotated[
    bool, params.QueryParameter(description="wait for the start, go on to the end, through restarts too")
]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the container")]
IdempotencyKey = Annotated[
    str,
    params.HeaderParameter(
        name="Idempotency-Key",
        description="of this request and no other: sent again with the same body within a day, it makes nothing new",
    ),
]
Grace = Annotated[
    int | None,
    params.QueryParameter(
        ge=0,
        le=userrule.LONGEST_GRACE_S,
        description="seconds between SIGTERM and SIGKILL; empty: the container's own",
    ),
]
