"""On a cluster a tenancy's registry credentials are a pull secret that the account of its pods names."""

from __future__ import annotations

import base64

import pytest

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.tenancy.credentials import ClusterCredentials
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.oci import registryauth
from fairlead.wire.oci.registryauth import Login

RED = Tenancy(metadata=meta.ObjectMeta(name="red", uid="aaaaaa-1"))
LOGIN = Login(username="red", password="rosebud")


async def test_logins_are_one_secret_of_the_kind_that_kubelets_read() -> None:
    store = MemoryStore()
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=baseline.namespace_name(RED))))
    kept = ClusterCredentials(store)

    await kept.add(RED, "b.example", LOGIN)
    assert await kept.add(RED, "a.example", LOGIN) == ("a.example", "b.example")

    found = await store.get(core.Secret, baseline.PULLS, baseline.namespace_name(RED))
    assert found.type == "kubernetes.io/dockerconfigjson"
    written = base64.b64decode(found.data[".dockerconfigjson"])
    assert registryauth.parse(written) == {"a.example": LOGIN, "b.example": LOGIN}

    await kept.drop(RED, "a.example")
    assert await kept.drop(RED, "b.example") == ()
    assert await kept.drop(RED, "b.example") == ()
    with pytest.raises(errors.NotFound):
        await store.get(core.Secret, baseline.PULLS, baseline.namespace_name(RED))


def test_an_account_names_the_secret_only_where_there_is_one() -> None:
    assert baseline.account(RED).image_pull_secrets == ()
    named = baseline.account(baseline.with_registries(RED, ("a.example",))).image_pull_secrets
    assert [one.name for one in named] == [baseline.PULLS]
