"""Makes the namespaces of users, and those that an administrator names for the first time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta


async def ensure(store: Store, name: str, *, labels: Mapping[str, str] | None = None) -> None:
    """Create a namespace; one that is there stays as it is, an administrator's or a tenant's.

    Raises: Denied: the caller may not make it, and it is not there or not theirs to read; or it is a tenancy's that is
            gone (`TenancyGone`), which only its controller makes: made here it would have no network of its own.
    """
    try:
        if baseline.is_namespace_name(name):
            await store.get(core.Namespace, name)
            return
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=name, labels=labels or {})))
    except errors.NotFound as error:
        raise baseline.gone(name) from error
    except errors.Conflict:
        return
    except errors.Denied:
        with contextlib.suppress(errors.NotFound, errors.Denied):
            await store.get(core.Namespace, name)
            return
        raise
