"""Logins against a certified OpenID Connect provider: npm's oidc-provider, from its lock, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.serve.accounts.oidc import mapping
from fairlead.serve.accounts.oidc.port import Person
from fairlead.serve.accounts.oidc.provider import Config, OpenIDProvider

pytestmark = pytest.mark.slow

REDIRECT = "https://fairlead.example/v1/oidc/callback"
_FOLDER = Path(__file__).parent / "oidc"
_ROWS = "email:ann@example.com=user:ann,groups:ml=developer@red"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    folder = tmp_path_factory.mktemp("oidc")
    for name in ("package.json", "package-lock.json", "provider.mjs"):
        shutil.copy(_FOLDER / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def issuer(modules: Path) -> Iterator[str]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    command = ["node", "provider.mjs", str(port), REDIRECT]
    with (modules / "log").open("wb") as log:
        running = subprocess.Popen(command, cwd=modules, stdout=subprocess.PIPE, stderr=log)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n", (modules / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()
        if running.stdout is not None:
            running.stdout.close()


@pytest.fixture
def provider(issuer: str) -> OpenIDProvider:
    scopes = "openid profile email groups"
    config = Config(
        issuer=issuer, client_id="fairlead", client_secret="s3cret:/+ word", scopes=scopes, rows=mapping.read(_ROWS)
    )
    return OpenIDProvider(config)


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(follow_redirects=False, trust_env=False) as one:
        yield one


async def _walk(browser: httpx.AsyncClient, answer: httpx.Response, name: str) -> httpx.Response:
    """Be a person in front of the provider's pages until it sends the browser elsewhere, or says that it is done."""
    for _ in range(20):
        if answer.is_redirect:
            target = urllib.parse.urljoin(str(answer.url), answer.headers["location"])
            if target.startswith(REDIRECT):
                return answer
            answer = await browser.get(target)
            continue
        form = re.search(r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', answer.text, re.DOTALL)
        if form is None:
            return answer
        fields = dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form[2]))
        if 'name="login"' in form[2]:
            fields |= {"login": name, "password": "any"}
        target = urllib.parse.urljoin(str(answer.url), html.unescape(form[1]))
        answer = await browser.post(target, data=fields)
    raise AssertionError(answer.text)


async def _login(provider: OpenIDProvider, browser: httpx.AsyncClient, name: str) -> Person:
    begun = await provider.start(REDIRECT, "/console")
    done = await _walk(browser, await browser.get(begun.url), name)
    said = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(done.headers["location"]).query))
    person = await provider.finish(REDIRECT, begun.sealed, said)
    with pytest.raises(errors.Unauthenticated):  # a code is good for one login
        await provider.finish(REDIRECT, begun.sealed, said)
    return person


async def test_a_browsers_login_says_who_it_is_and_what_the_table_makes_of_it(
    provider: OpenIDProvider, browser: httpx.AsyncClient, issuer: str
) -> None:
    person = await _login(provider, browser, "ann")
    assert (person.issuer, person.subject, person.back) == (issuer, "sub-ann", "/console")
    mapped = provider.decide(person)
    assert (mapped.account, mapped.is_named, mapped.roles) == ("ann", True, {"red": "developer"})


async def test_an_address_that_the_provider_did_not_verify_names_no_account(
    provider: OpenIDProvider, browser: httpx.AsyncClient
) -> None:
    mapped = provider.decide(await _login(provider, browser, "eve"))
    assert (mapped.account, mapped.is_named, mapped.roles) == ("eve", False, {"red": None})


async def test_a_device_waits_until_its_code_is_confirmed_in_a_browser(
    provider: OpenIDProvider, browser: httpx.AsyncClient
) -> None:
    begun = await provider.start_device()
    assert await provider.poll_device(begun.sealed) is None
    confirmed = await _walk(browser, await browser.get(begun.whole_url), "ann")
    assert confirmed.status_code == 200, confirmed.text
    await asyncio.sleep(0)
    person = await provider.poll_device(begun.sealed)
    assert person is not None
    assert person.subject == "sub-ann"
    with pytest.raises(errors.Unauthenticated):
        await provider.poll_device(begun.sealed)


async def test_a_client_with_a_wrong_secret_is_refused(issuer: str, browser: httpx.AsyncClient) -> None:
    wrong = OpenIDProvider(Config(issuer=issuer, client_id="fairlead", client_secret="wrong"))
    begun = await wrong.start(REDIRECT, "/")
    done = await _walk(browser, await browser.get(begun.url), "ann")
    said = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(done.headers["location"]).query))
    with pytest.raises(errors.Unauthenticated, match="invalid_client"):
        await wrong.finish(REDIRECT, begun.sealed, said)
