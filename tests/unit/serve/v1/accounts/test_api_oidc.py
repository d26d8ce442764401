"""Logins by an identity provider: who the provider vouches for is whom the table says, and every lie is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwk

from fairlead import errors
from fairlead.cli.core.login import devicelogin
from fairlead.client import contexts
from fairlead.serve import server
from fairlead.serve.accounts import port, sessions, stores
from fairlead.serve.accounts.oidc import mapping
from fairlead.serve.accounts.oidc.port import Logins
from fairlead.serve.accounts.oidc.provider import Config, OpenIDProvider
from fairlead.serve.accounts.roles import Role
from fairlead.serve.database import engine
from fairlead.serve.limits.gate import Policy
from tests.unit.serve.accounts import fakeprovider
from tests.unit.serve.accounts.fakeprovider import FakeProvider
from tests.unit.serve.v1.accounts.test_api_accounts import UNLIMITED, Lab
from tests.unit.serve.world import World, in_process

REDIRECT = "https://test/v1/oidc/callback"
_MAP = "email:ann@example.com=user:ann,groups:ml=developer@red,groups:lead=owner@red,groups:ops=administrator"


class OIDCLab(Lab):
    """A machine whose people come by a provider."""

    provider: FakeProvider
    client: OpenIDProvider  # type: ignore[assignment]
    late_s = 0.0

    def reopen(self) -> None:
        """Serve with what `accounts` is now."""
        self.services = dataclasses.replace(self.services, accounts=self.accounts)
        self.app = self.guarded(Policy(key=UNLIMITED, address=UNLIMITED))

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=in_process(self.app), base_url="https://test")

    async def login(self, browser: httpx.AsyncClient, back: str = "/", **changed: Any) -> httpx.Response:
        begun = await browser.get("/v1/oidc/login", params={"back": back})
        assert begun.status_code == 302, begun.text
        answer = self.provider.consent(begun.headers["location"])
        cookie = begun.headers["set-cookie"].partition(";")[0]
        params = {name: value for name, value in {**answer, **changed}.items() if value is not None}
        return await browser.get("/v1/oidc/callback", params=params, headers={"cookie": cookie})


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[OIDCLab]:
    async with fakeprovider.started() as provider, engine.opened(engine.url_of("", tmp_path)) as database:
        made = OIDCLab(world, await _accounts(database, provider))
        made.provider = provider
        await made.tenancy("red")
        await made.accounts.people.create("ann", kind=port.PERSON, is_administrator=False)
        yield made


async def _accounts(database: Any, provider: FakeProvider, *, may_create: bool = False) -> port.Accounts:
    config = Config(
        issuer=provider.issuer,
        client_id=fakeprovider.CLIENT,
        client_secret=fakeprovider.SECRET,
        rows=mapping.read(_MAP),
    )
    client = OpenIDProvider(config)
    return stores.open_accounts(
        database,
        logins=lambda identities: Logins(
            provider=client, identities=identities, may_create=may_create, redirect=REDIRECT, key_s=60.0
        ),
    )


def _cookie(answer: httpx.Response) -> str:
    values = [one.partition(";")[0].partition("=") for one in answer.headers.get_list("set-cookie")]
    return {name: value for name, _, value in values}.get(sessions.COOKIE, "")


async def _self(lab: OIDCLab, cookie: str) -> dict[str, Any]:
    async with lab.browser() as browser:
        answer = await browser.get("/v1/self", headers={"cookie": f"{sessions.COOKIE}={cookie}"})
    found: dict[str, Any] = answer.json()
    return found


async def test_a_person_logs_in_and_gets_the_session_and_the_roles_of_the_table(lab: OIDCLab) -> None:
    lab.provider.claims["groups"] = ["ml", "all"]
    async with lab.browser() as browser:
        answer = await lab.login(browser, back="/console?x=1")
    assert (answer.status_code, answer.headers["location"].partition("#token=")[0]) == (303, "/console?x=1")
    asked = lab.provider.asked
    assert (asked["code_challenge_method"], asked["response_type"], asked["redirect_uri"]) == ("S256", "code", REDIRECT)
    said = [one for one in answer.headers.get_list("set-cookie") if one.startswith(f"{sessions.COOKIE}=")]
    assert all(word in said[0].lower() for word in ("secure", "httponly", "samesite=lax", "path=/"))
    me = await _self(lab, _cookie(answer))
    assert (me["account"], [one["role"] for one in me["memberships"]]) == ("ann", ["developer"])
    assert me["is_administrator"] is False


async def test_roles_follow_the_claims_at_each_login(lab: OIDCLab) -> None:
    seen = []
    for groups in (["ml", "lead"], ["ml"], [], ["ops"], "ml"):
        lab.provider.claims["groups"] = groups
        async with lab.browser() as browser:
            me = await _self(lab, _cookie(await lab.login(browser)))
        seen.append(([one["role"] for one in me["memberships"]], me["is_administrator"]))
    assert seen == [(["owner"], False), (["developer"], False), ([], False), ([], True), (["developer"], False)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"iss": "https://evil.example"}, "iss"),
        ({"aud": "another"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["fairlead", "another"]}, "azp"),
        ({"azp": "another"}, "azp"),
        ({"exp": int(time.time()) - 120}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": int(time.time()) + 3600}, "issued in the future"),
        ({"nbf": int(time.time()) + 3600}, "not yet valid"),
        ({"nonce": "of another login"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"sub": None}, "sub"),
        ({"sub": 7}, "sub"),
        ({"sub": "x" * 256}, "subject"),
    ],
)
async def test_an_id_token_that_is_not_for_this_login_is_refused(
    lab: OIDCLab, changed: dict[str, Any], said: str
) -> None:
    lab.provider.changed = changed
    async with lab.browser() as browser:
        answer = await lab.login(browser)
    assert (answer.status_code, answer.json()["reason"]) == (401, "LoginFailed"), answer.text
    assert said in answer.json()["detail"]
    assert not _cookie(answer)


async def test_clocks_may_differ_by_a_minute(lab: OIDCLab) -> None:
    lab.provider.changed = {"exp": int(time.time()) - 30, "iat": int(time.time()) + 30}
    async with lab.browser() as browser:
        assert (await lab.login(browser)).status_code == 303


async def test_a_token_signed_by_another_key_or_by_the_clients_secret_is_refused(lab: OIDCLab) -> None:
    forger = jwk.RSAKey.generate_key(2048, {"kid": "one"}, private=True)
    for signer, algorithm in (
        (forger, "RS256"),
        (jwk.OctKey.import_key(fakeprovider.SECRET.encode() * 3), "HS256"),
    ):
        lab.provider.signer, lab.provider.algorithm = signer, algorithm
        async with lab.browser() as browser:
            answer = await lab.login(browser)
        assert (answer.status_code, answer.json()["reason"]) == (401, "LoginFailed"), algorithm


async def test_keys_are_fetched_anew_when_the_provider_rotates_them_and_not_for_every_forgery(lab: OIDCLab) -> None:
    found = lab.accounts.logins
    assert found is not None
    client: Any = found.provider
    start = time.time()
    async with lab.browser() as browser:
        assert (await lab.login(browser)).status_code == 303
        lab.provider.keys = [jwk.RSAKey.generate_key(2048, {"kid": "two"}, private=True)]
        refused = await lab.login(browser)
        assert (refused.status_code, lab.provider.key_fetches) == (401, 1)
        client.now = lambda: start + 30
        assert (await lab.login(browser)).status_code == 303
        assert lab.provider.key_fetches == 2


@pytest.mark.parametrize(
    "changed", [{"state": "x"}, {"state": None}, {"code": "x"}, {"iss": "https://evil.example"}, {"error": "denied"}]
)
async def test_an_answer_that_is_not_of_this_login_is_refused(lab: OIDCLab, changed: dict[str, Any]) -> None:
    async with lab.browser() as browser:
        answer = await lab.login(browser, **changed)
    assert (answer.status_code, answer.json()["reason"]) == (401, "LoginFailed")


@pytest.mark.parametrize("more", [{}, {"state": ""}])
async def test_what_was_begun_for_a_device_is_no_login_of_a_browser(lab: OIDCLab, more: dict[str, str]) -> None:
    async with lab.browser() as browser:
        handle = (await browser.post("/v1/oidc/device")).json()["handle"]
        cookie = {"cookie": f"__Host-fairlead-login={handle}"}
        refused = await browser.get("/v1/oidc/callback", params={"code": "c0de", **more}, headers=cookie)
    assert (refused.status_code, refused.json()["reason"]) == (401, "LoginFailed")


async def test_an_address_is_verified_by_the_document_that_it_is_in(lab: OIDCLab) -> None:
    """The ID token has an address that nobody verified; the user information verifies another one."""
    lab.provider.claims = {"sub": "s-eve", "email": "ann@example.com"}
    lab.provider.userinfo = {"email": "eve@example.com", "email_verified": True, "preferred_username": "eve"}
    async with lab.browser() as browser:
        refused = await lab.login(browser)
        assert (refused.status_code, refused.json()["reason"]) == (403, "IdentityUnknown")
        lab.provider.userinfo["email"] = "ann@example.com"
        assert (await _self(lab, _cookie(await lab.login(browser))))["account"] == "ann"


async def test_an_answer_nested_without_end_is_the_providers_fault(lab: OIDCLab) -> None:
    lab.provider.raw = b"[" * 200_000
    async with lab.browser() as browser:
        refused = await browser.get("/v1/oidc/login")
    assert (refused.status_code, refused.json()["reason"]) == (502, "ProviderBroken")


async def test_a_login_ends_in_the_browser_that_began_it_alone(lab: OIDCLab) -> None:
    async with lab.browser() as browser:
        begun = await browser.get("/v1/oidc/login")
        answer = lab.provider.consent(begun.headers["location"])
    async with lab.browser() as victim:
        refused = await victim.get("/v1/oidc/callback", params=answer)
    assert (refused.status_code, refused.json()["reason"]) == (401, "LoginFailed")


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nx: y", "/ü"])
async def test_a_login_ends_at_a_path_of_ours(lab: OIDCLab, back: str) -> None:
    async with lab.browser() as browser:
        answer = await browser.get("/v1/oidc/login", params={"back": back})
    assert (answer.status_code, answer.json()["reason"]) == (400, "ReturnInvalid")


async def test_a_stranger_gets_no_account_unless_the_setting_says_so(lab: OIDCLab) -> None:
    lab.provider.claims = {"sub": "s-eve", "preferred_username": "eve"}
    async with lab.browser() as browser:
        answer = await lab.login(browser)
        assert (answer.status_code, answer.json()["reason"]) == (403, "IdentityUnknown")
        assert "eve" not in [one.name for one in await lab.accounts.people.list()]
        assert lab.accounts.logins is not None
        lab.accounts = dataclasses.replace(
            lab.accounts, logins=dataclasses.replace(lab.accounts.logins, may_create=True)
        )
        lab.reopen()
    async with lab.browser() as browser:
        me = await _self(lab, _cookie(await lab.login(browser)))
    assert (me["account"], me["memberships"], me["is_administrator"]) == ("eve", [], False)


async def test_nobody_becomes_another_person_by_choosing_their_name(lab: OIDCLab) -> None:
    await lab.accounts.people.create("root", kind=port.PERSON, is_administrator=True)
    await lab.accounts.people.create("ci", kind=port.SERVICE, is_administrator=False)

    async def reason(**claims: Any) -> str:
        lab.provider.claims = claims
        async with lab.browser() as browser:
            answer = await lab.login(browser)
        return "" if answer.status_code == 303 else str(answer.json()["reason"])

    assert await reason(sub="s-ann", preferred_username="ann") == ""
    assert await reason(sub="s-eve", preferred_username="ann") == "IdentityTaken"
    assert await reason(sub="s-eve", preferred_username="root") == "AccountProtected"
    assert await reason(sub="s-eve", preferred_username="ci") == "AccountProtected"
    assert await reason(sub="s-eve", email="ann@example.com") == "IdentityUnknown"
    assert await reason(sub="s-eve", email="ann@example.com", email_verified="true") == "IdentityUnknown"
    assert await reason(sub="s-eve", preferred_username="../ann") == "IdentityUnknown"
    # Who has been linked stays the same account, whatever they call themselves later.
    assert await reason(sub="s-ann", preferred_username="root") == ""
    # The operator's own table leads to any account.
    assert await reason(sub="s-new", email="ann@example.com", email_verified=True) == ""


async def test_claims_come_from_the_user_information_too_if_it_is_of_the_same_person(lab: OIDCLab) -> None:
    lab.provider.claims, lab.provider.userinfo = {"sub": "s-ann"}, {"preferred_username": "ann", "groups": ["ml"]}
    async with lab.browser() as browser:
        assert (await _self(lab, _cookie(await lab.login(browser))))["account"] == "ann"
        lab.provider.userinfo = {"sub": "s-other", "preferred_username": "ann"}
        assert (await lab.login(browser)).json()["reason"] == "LoginFailed"


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": 7},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
async def test_a_provider_that_is_not_the_one_that_was_set_is_refused(lab: OIDCLab, metadata: dict[str, Any]) -> None:
    lab.provider.metadata = metadata
    async with lab.browser() as browser:
        answer = await browser.get("/v1/oidc/login")
    assert (answer.status_code, answer.json()["reason"]) == (502, "ProviderBroken")


async def test_a_machine_without_a_browser_gets_a_key_once_it_is_confirmed(lab: OIDCLab) -> None:
    lab.provider.pending = 1
    async with lab.browser() as console:
        begun = (await console.post("/v1/oidc/device")).json()
        assert (begun["user_code"], begun["interval_s"]) == ("ABCD-EFGH", 1.0)
        body = {"handle": begun["handle"]}
        assert (await console.post("/v1/oidc/device:finish", json=body)).json()["is_pending"] is True
        done = (await console.post("/v1/oidc/device:finish", json=body)).json()
        assert (done["account"], done["key"][:4]) == ("ann", "flk_")
        me = await console.get("/v1/self", headers={"authorization": f"Bearer {done['key']}"})
        assert me.json()["account"] == "ann"
        forged = await console.post("/v1/oidc/device:finish", json={"handle": "gAAAAx"})
        assert (forged.status_code, forged.json()["reason"]) == (401, "LoginFailed")
    kept = await lab.accounts.keys.list("ann")
    assert kept[0].expires_at is not None


async def test_the_command_line_waits_for_the_key(
    lab: OIDCLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ready = tmp_path / "s", asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve_unix(lab.app, path, ready=ready))
        await ready.wait()
        entered = contexts.Context(name="x", url=f"http+unix://{path}", key="")
        key = await asyncio.to_thread(devicelogin.key, entered)
        serving.cancel()
    assert (await lab.accounts.keys.list("ann"))[0].id == key.split("_")[1]
    said = capsys.readouterr().err
    assert "ABCD-EFGH" in said
    assert key not in said


async def test_a_login_is_in_the_audit_log_with_whose_it_was(lab: OIDCLab) -> None:
    await lab.account("root", is_root=True)
    async with lab.browser() as browser:
        await lab.login(browser)
    found = (await lab.ask("root", "GET", "/v1/audit")).json()["items"]
    assert [(one["account"], one["object"], one["status"]) for one in found] == [("ann", "/v1/oidc/callback", 303)]


async def test_where_no_provider_is_set_it_is_said(lab: OIDCLab) -> None:
    lab.accounts = dataclasses.replace(lab.accounts, logins=None)
    lab.reopen()
    async with lab.browser() as browser:
        answer = await browser.get("/v1/oidc/login")
    assert (answer.status_code, answer.json()["reason"]) == (404, "OIDCOff")


@pytest.mark.parametrize(
    "text", ["groups", "groups:ml", "groups:ml=", "a:b=god", "a:b=owner@", "a:b=user:", "a:b=user:A B"]
)
def test_a_row_of_the_table_that_is_wrong_is_named(text: str) -> None:
    with pytest.raises(errors.Invalid, match=r"oidc\.map"):
        mapping.read(f"groups:ml=developer@red,{text}")


def test_a_row_reads_values_with_signs_in_them() -> None:
    (row,) = mapping.read(" role:urn:x=y=owner@red ")
    assert (row.claim, row.value, row.role, row.tenancy) == ("role", "urn:x=y", Role.OWNER, "red")


def test_an_issuer_without_tls_is_refused() -> None:
    for issuer in ("http://idp.example", "ftp://localhost", "https://", "https://[", ""):
        with pytest.raises(errors.Invalid):
            OpenIDProvider(Config(issuer=issuer, client_id="x"))
    OpenIDProvider(Config(issuer="https://idp.example", client_id="x"))
