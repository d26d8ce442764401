"""On a cluster a tenancy's registry credentials are a pull secret that the account of its pods names."""

from __future__ import annotations

import base64

import msgspec
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
_PULLS = "kubernetes.io/dockerconfigjson"
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


def dockerconfig(text: str) -> dict[str, str]:
    return {".dockerconfigjson": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("foreign", "says"),
    [
        (core.Secret(data={"token": "c2VjcmV0"}), "its type is Opaque"),
        (
            core.Secret(type=_PULLS, data=dockerconfig('{"auths": {}}'), immutable=True),
            "immut",
        ),
        (core.Secret(type=_PULLS, data=dockerconfig("rosebud")), "is not what `fairlead"),
        (core.Secret(type=_PULLS, data={".dockerconfigjson": "%"}), "is not what `fairlead"),
        (
            core.Secret(type=_PULLS, data=dockerconfig('{"auths": {"a.example": {"username": "u"}}}')),
            "its entry of a.example has no auth",
        ),
    ],
)
async def test_a_secret_of_somebody_else_is_named_and_left_as_it_is(foreign: core.Secret, says: str) -> None:
    store, space = MemoryStore(), baseline.namespace_name(RED)
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=space)))
    about = meta.ObjectMeta(name=baseline.PULLS, namespace=space)
    made = await store.create(msgspec.structs.replace(foreign, metadata=about))
    kept = ClusterCredentials(store)
    for act in (kept.add(RED, "b.example", LOGIN), kept.drop(RED, "b.example")):
        with pytest.raises(errors.Conflict, match=says) as refused:
            await act
        said = f"{refused.value} {refused.value.hint}"
        assert refused.value.reason == "SecretForeign"
        assert f"kubectl -n {space} delete secret {baseline.PULLS}" in said
        assert "rosebud" not in said
    assert await store.get(core.Secret, baseline.PULLS, space) == made


def test_an_account_names_the_secret_only_where_there_is_one() -> None:
    assert baseline.account(RED).image_pull_secrets == ()
    named = baseline.account(baseline.with_registries(RED, ("a.example",))).image_pull_secrets
    assert [one.name for one in named] == [baseline.PULLS]
