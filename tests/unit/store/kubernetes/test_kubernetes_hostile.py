"""The client before servers, plugins and files that mean no good: bounded, refused by name, credentials kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead import errors
from fairlead.store.kubernetes import client, credentials, watch
from fairlead.wire.kubernetes import kubeconfig
from tests.unit.store.kubernetes import scriptedserver as scripted

GET = client.Request(method="GET", path="/api/v1/pods")
_SMALL = client.Limits(patience_s=0.05, answer_bytes=100_000)


def _large(code: int, *, says_length: bool) -> scripted.Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=code)
        if says_length:
            response.content_length = 100_001
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        for _ in range(2):
            await response.write(b" " * 50_000)
        await response.write(b"x")
        return response

    return answer


@pytest.mark.parametrize("code", [200, 403])
@pytest.mark.parametrize("says_length", [True, False])
async def test_an_answer_has_a_largest_size(code: int, says_length: bool) -> None:
    answer = _large(code, says_length=says_length)
    async with scripted.serving(answer) as server, scripted.connected(server, _SMALL) as opened:
        with pytest.raises(errors.ProtocolError, match="100000 bytes") as refused:
            await opened.request(GET)
        assert (refused.value.reason, len(server.calls)) == ("AnswerTooLarge", 1)


async def test_an_answer_of_just_that_size_is_read() -> None:
    answer = scripted.reply("x" * 99_998)
    async with scripted.serving(answer) as server, scripted.connected(server, _SMALL) as opened:
        assert len(await opened.request(GET)) == 100_000


@pytest.fixture
async def elsewhere() -> Any:
    async with scripted.serving(scripted.reply({"taken": True})) as server:
        yield server


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_at_once_and_nothing_is_shown_there(elsewhere: scripted.Server, code: int) -> None:
    redirect = scripted.refuse(code, location=f"{elsewhere.url}/api/v1/pods")
    async with scripted.serving(redirect) as server:
        async with scripted.connected(server, token="secret", impersonate="me") as opened:
            with pytest.raises(errors.Unavailable, match="redirect") as refused:
                await opened.request(GET)
            with pytest.raises(errors.Unavailable, match="redirect"):
                async with opened.stream(GET, silence_s=1):
                    pass
            with pytest.raises(errors.Unavailable, match="redirect"):
                await opened.connect(GET, ("v5.channel.k8s.io",))
        assert refused.value.reason == "Redirected"
        assert refused.value.hint is not None
    assert elsewhere.calls == []


_BAD = ("a\r\nX-Remote-User: root", "a\nb", "a\rb", "a\0b", "a\x7fb")


@pytest.mark.parametrize("token", _BAD)
async def test_a_token_that_no_header_can_carry_is_refused_by_its_files_name(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_bytes(token.encode())
    held = _credentials(token_file=str(tmp_path / "token"))
    with pytest.raises(errors.ProtocolError, match=str(tmp_path / "token")) as refused:
        await held.headers()
    assert refused.value.reason == "CredentialsInvalid"
    assert token not in str(refused.value)


@pytest.mark.parametrize("bad", _BAD)
@pytest.mark.parametrize("field", ["token", "impersonate", "impersonate_uid"])
async def test_words_of_a_kubeconfig_that_no_header_can_carry_are_refused(field: str, bad: str) -> None:
    with pytest.raises(errors.ProtocolError, match="kubeconfig") as refused:
        await _credentials(**{field: bad}).headers()
    assert bad not in str(refused.value)


async def test_a_group_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(errors.ProtocolError, match="Impersonate-Group"):
        await _credentials(impersonate="me", impersonate_groups=("a", "b\nc")).headers()


async def test_a_token_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(errors.ProtocolError, match=str(tmp_path / "token")):
        await _credentials(token_file=str(tmp_path / "token")).headers()


def _credentials(**user: Any) -> credentials.Credentials:
    cluster = kubeconfig.Cluster(server="http://one")
    access = credentials.Access(cluster=cluster, user=kubeconfig.User(**user), namespace="default", env={})
    return credentials.Credentials(access)


def _plugin(folder: Path, script: str) -> credentials.Credentials:
    program = folder / "plugin.sh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    made = kubeconfig.Exec(command=str(program), api_version="client.authentication.k8s.io/v1")
    return _credentials(exec=made)


_CREDENTIAL = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":%s}'


@pytest.mark.parametrize(
    "script",
    ["exec /usr/bin/yes", "exec /usr/bin/yes >&2", "/usr/bin/yes & wait", "exec /usr/bin/head -c 2000000 /dev/zero"],
)
async def test_a_plugin_that_does_not_stop_writing_is_ended(tmp_path: Path, script: str) -> None:
    with pytest.raises(errors.Unavailable, match=r"plugin\.sh gave no credentials: .* wrote more than"):
        await _plugin(tmp_path, script).headers()


@pytest.mark.parametrize("until", ["soon", "", "2026-13-45T00:00:00Z", "9" * 300, "0001-01-01T00:00:00"])
async def test_an_end_of_credentials_that_is_not_a_time_is_refused(tmp_path: Path, until: str) -> None:
    status = json.dumps({"token": "t", "expirationTimestamp": until})
    with pytest.raises(errors.ProtocolError, match=r"plugin\.sh") as refused:
        await _plugin(tmp_path, f"echo '{_CREDENTIAL % status}'").headers()
    assert refused.value.reason == "ExecCredentialInvalid"


async def test_a_plugins_token_with_a_line_break_is_refused_by_the_plugins_name(tmp_path: Path) -> None:
    status = '{"token":"a\\\\nb"}'
    with pytest.raises(errors.ProtocolError, match=r"plugin\.sh"):
        await _plugin(tmp_path, f"printf '{_CREDENTIAL % status}'").headers()


async def test_a_line_of_a_watch_has_a_largest_size() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    with pytest.raises(errors.ProtocolError, match="without an end of line"):
        async for _ in watch.lines(endless()):
            pass
