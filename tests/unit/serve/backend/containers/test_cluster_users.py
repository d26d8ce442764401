"""Pods that the API makes on a cluster have user namespaces where their tenancy asks for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.containers.lifecycle import ClusterLifecycle
from fairlead.serve.backend.place import Everywhere
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead.tenancy import Tenancy, TenancySpec
from fairlead.wire.kubernetes import core, meta

_UID = "0f990600-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("asks", "given", "made"), [(False, None, None), (True, None, False), (True, True, True), (False, False, False)]
)
async def test_a_pod_has_what_its_tenancy_asks_for(asks: bool, given: bool | None, made: bool | None) -> None:
    store, absent = MemoryStore(), Any
    about = meta.ObjectMeta(name="red", uid=_UID)
    item = Tenancy(metadata=about, spec=TenancySpec(host_users=not asks))
    space = await store.create(baseline.namespace(item))
    spec = core.PodSpec(containers=(core.Container(name="main", image="x"),), host_users=given)
    pod = core.Pod(metadata=meta.ObjectMeta(name="one", namespace=space.metadata.name), spec=spec)
    lifecycle = ClusterLifecycle(store=store, placement=absent, trial=absent, recreation=absent)  # type: ignore[arg-type]
    stored = await lifecycle.submit(Everywhere().new(space.metadata.name).submission(pod))
    assert stored.spec.host_users is made
    assert ("hostUsers" in msgspec.to_builtins(stored.spec)) is (made is not None)
