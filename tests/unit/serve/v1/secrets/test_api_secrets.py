"""Secrets through the API: made, replaced, listed, given to containers and deleted; no answer has a value."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import msgspec
import pytest

from fairlead.store.sealing import Seal
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.source import KeySelector
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, lab
from tests.unit.serve.world import World

__all__ = ["lab"]

VALUE = "rosebud-7f3a"


async def _make(api: httpx.AsyncClient, name: str = "db", namespace: str = "", **values: str) -> httpx.Response:
    body = {"name": name, "namespace": namespace, "values": values or {"value": VALUE}}
    answer = await api.post("/v1/secrets", json=body)
    assert VALUE not in answer.text
    return answer


async def test_a_secret_is_shown_without_its_value_and_lies_encrypted(
    api: httpx.AsyncClient, world: World, tmp_path: Path
) -> None:
    made = await _make(api)
    assert (made.status_code, made.json()["digests"].keys()) == (201, {"value"})
    raw = base64.b64encode(b"\xff\0rosebud").decode()
    replaced = await api.put("/v1/secrets/db", json={"values": {"a": "b"}, "values_base64": {"raw": raw}})
    assert (replaced.status_code, list(replaced.json()["digests"])) == (200, ["a", "raw"])
    assert replaced.json()["created_at"] == made.json()["created_at"]

    stored = await world.store.get(core.Secret, "db", "default")
    assert b"rosebud" not in msgspec.json.encode(stored)
    assert base64.b64encode(b"rosebud")[:8] not in msgspec.json.encode(stored)
    assert Seal(tmp_path / "secrets.key").opened(stored) == {"a": b"b", "raw": b"\xff\0rosebud"}
    for path in ("/v1/secrets", "/v1/secrets/db"):
        shown = (await api.get(path)).text
        assert "rosebud" not in shown
        assert raw not in shown

    assert (await api.delete("/v1/secrets/db")).status_code == 204
    for answer in (await api.get("/v1/secrets/db"), await api.delete("/v1/secrets/db")):
        assert (answer.status_code, answer.json()["reason"]) == (404, "SecretNotFound")
    assert (await api.put("/v1/secrets/db", json={"values": {"a": "b"}})).status_code == 404


async def test_a_change_can_be_bound_to_what_was_seen(api: httpx.AsyncClient) -> None:
    await _make(api)
    seen = (await api.get("/v1/secrets/db")).headers["etag"]
    assert (await _make(api)).json()["reason"] == "AlreadyExists"
    body = {"values": {"value": "other"}}
    assert (await api.put("/v1/secrets/db", json=body, headers={"If-Match": seen})).status_code == 200
    assert (await api.put("/v1/secrets/db", json=body, headers={"If-Match": seen})).status_code == 412
    fresh = (await api.get("/v1/secrets/db")).headers["etag"]
    assert (await api.get("/v1/secrets/db", headers={"If-None-Match": fresh})).status_code == 304


async def test_lists_come_in_pages(api: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await _make(api, name)
    first = (await api.get("/v1/secrets", params={"limit": 2})).json()
    rest = (await api.get("/v1/secrets", params={"limit": 2, "after": first["next"]})).json()
    assert [one["name"] for one in (*first["items"], *rest["items"])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "HF_TOKEN", "values": {"value": VALUE}},
        {"name": "db", "values": {}},
        {"name": "db", "values": {"a b": VALUE}},
        {"name": "db", "values": {"..": VALUE}},
        {"name": "db", "values": {"a": VALUE}, "values_base64": {"a": "eA=="}},
        {"name": "db", "values_base64": {"a": VALUE + "%"}},
        {"name": "db", "values": {"a": VALUE * 100_000}},
        {"name": "tenancy-registries", "values": {"a": VALUE}},
        {"name": "db", "values": {f"{VALUE[:4]}{one}": "x" for one in range(65)}},
    ],
)
async def test_what_cannot_be_kept_is_refused_without_repeating_it(api: httpx.AsyncClient, body: object) -> None:
    refused = await api.post("/v1/secrets", json=body)
    assert (refused.status_code, refused.json()["reason"]) == (422, "SecretInvalid")
    assert VALUE not in refused.text


async def test_a_quota_counts_secrets(api: httpx.AsyncClient, world: World) -> None:
    about = meta.ObjectMeta(name="q", namespace="default")
    await world.store.create(core.ResourceQuota(metadata=about, spec=core.ResourceQuotaSpec(hard={"secrets": "1"})))
    assert (await _make(api, "a")).status_code == 201
    refused = await _make(api, "b")
    assert (refused.status_code, "exceeded quota: q" in refused.json()["detail"]) == (403, True)


async def test_a_container_is_given_variables_and_files_of_secrets(api: httpx.AsyncClient, world: World) -> None:
    await _make(api)
    await _make(api, "tls", key="k", cert="c")
    secrets = [{"name": "db", "env": "TOKEN"}, {"name": "db"}, {"name": "tls", "key": "cert", "path": "/etc/a.crt"}]
    made = await api.post("/v1/containers", json={"image": "demo", "name": "one", "secrets": secrets})
    assert made.status_code == 201, made.text
    spec = (await world.pod("one")).spec
    source = core.EnvVarSource(secret_key_ref=KeySelector(name="db", key="value"))
    assert spec.containers[0].env == (core.EnvVar(name="TOKEN", value_from=source),)
    assert [(one.mount_path, one.sub_path) for one in spec.containers[0].volume_mounts] == [
        ("/run/secrets/db", "value"),
        ("/etc/a.crt", "value"),
    ]
    assert [one.secret.secret_name for one in spec.volumes if one.secret] == ["db", "tls"]
    assert (await api.get("/v1/secrets/db")).json()["used_by"] == ["one"]


@pytest.mark.parametrize(
    ("secret", "reason"),
    [({"name": "none"}, "SecretNotFound"), ({"name": "tls"}, "SecretKeyUnknown"), ({"name": "tls", "key": "x"}, "S")],
)
async def test_a_request_for_what_is_not_there_is_refused_at_once(
    api: httpx.AsyncClient, secret: dict[str, str], reason: str
) -> None:
    await _make(api, "tls", key="k", cert="c")
    refused = await api.post("/v1/containers", json={"image": "demo", "secrets": [secret]})
    assert (refused.status_code, refused.json()["reason"].startswith(reason)) == (422, True)


async def test_another_tenancys_secrets_do_not_exist(lab: Lab, world: World) -> None:
    red, blue = lab.namespaces["red"], lab.namespaces["blue"]
    async with lab.client("developer") as dev, lab.client("viewer") as viewer, lab.client("stranger") as other:
        assert (await _make(dev, namespace=red)).status_code == 201
        assert (await _make(other, "own", blue)).status_code == 201
        assert [one["name"] for one in (await other.get("/v1/secrets")).json()["items"]] == ["own"]
        assert [one["name"] for one in (await viewer.get("/v1/secrets")).json()["items"]] == ["db"]
        there, body = {"namespace": red}, {"values": {"value": "x"}}
        answers = [
            await other.get("/v1/secrets/db", params=there),
            await other.put("/v1/secrets/db", params=there, json=body),
            await other.delete("/v1/secrets/db", params=there),
            await other.get("/v1/secrets", params=there),
            await _make(other, "mine", red),
        ]
        assert [answer.status_code for answer in answers] == [404] * 5
        refused = await other.post("/v1/containers", json={"image": "demo", "secrets": [{"name": "db"}]})
        assert (refused.status_code, refused.json()["reason"]) == (422, "SecretNotFound")
        assert (await _make(viewer, "no", red)).json()["reason"] == "RoleForbids"
    assert len((await world.store.list(core.Secret)).items) == 2
    audited = (await lab.ask("root", "GET", "/v1/audit")).text
    assert "secret.write" in audited
    assert VALUE not in audited
