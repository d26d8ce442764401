"""Opened ports as a browser and an attacker ask for them: who is let in, what passes, and how long."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.serve.accounts import sessions
from fairlead.serve.accounts.roles import Role
from fairlead.serve.opened import pages
from fairlead.serve.opened.grants import Limits
from fairlead.serve.opened.upstream import Patience
from tests.unit.serve.opened import openlab
from tests.unit.serve.opened.openlab import CONSOLE, DOMAIN, PORT, Open
from tests.unit.serve.world import World

HTML = {"accept": "text/html"}


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Open]:
    (tmp_path / "accounts").mkdir()
    async with openlab.listening(world, tmp_path / "accounts") as made:
        await openlab.run(made)
        yield made


def said(answer: httpx.Response) -> tuple[int, str]:
    """Return the status of a page of ours, and its title."""
    return answer.status_code, answer.text.partition(":")[0]


async def test_a_ticket_leads_in_once_and_the_address_that_stays_has_none(lab: Open) -> None:
    async with openlab.site(lab):
        host, ticket = await lab.ticket(path="/lab?token=x")
        first = await lab.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host)
        assert (first.status_code, first.headers["location"]) == (303, "/lab?token=x")
        name, *rest = first.headers["set-cookie"].split("; ")
        assert name.startswith("__Host-fairlead-open=")
        assert sorted(rest) == ["HttpOnly", "Path=/", "SameSite=Lax", "Secure"]
        again = await lab.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host)
        assert said(again) == (401, pages.USED.title)
        led = await lab.ask("GET", "/lab?token=x", host=host, headers={"cookie": name})
        assert (led.status_code, led.json()["path"]) == (200, "/lab?token=x")
        reloaded = await lab.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host, headers={"cookie": name})
        assert (reloaded.status_code, reloaded.headers["location"]) == (303, "/")
        assert "set-cookie" not in reloaded.headers


async def test_a_ticket_is_good_for_a_minute_and_no_page_has_it_in_a_frame(lab: Open) -> None:
    host, ticket = await lab.ticket()
    for kind in ("iframe", "image", "empty", "serviceworker"):
        framed = await lab.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host, headers={"sec-fetch-dest": kind})
        assert said(framed) == (403, pages.FOREIGN.title)
    lab.time[0] += 61
    assert said(await lab.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host)) == (401, pages.USED.title)
    for wrong in ("", "x", "0" * 64, f"{ticket}&ticket={ticket}", "%00", "a" * 5000):
        assert (await lab.ask("GET", f"/.fairlead/open?ticket={wrong}", host=host)).status_code == 401, wrong
    assert (await lab.ask("POST", f"/.fairlead/open?ticket={ticket}", host=host)).status_code == 405


async def test_without_its_own_cookie_nothing_is_reached(lab: Open) -> None:
    async with openlab.site(lab) as seen:
        host, cookie = await lab.enter()
        other_host, other_cookie = await lab.enter("admin")
        assert other_host != host
        for headers in (
            {},
            {"cookie": other_cookie},
            {"cookie": cookie + "0"},
            {"cookie": f"{cookie}; {cookie}"},
            {"cookie": cookie.replace("__Host-", "")},
            {"authorization": f"Bearer {lab.lab.keys['developer']}"},
            {"authorization": f"Bearer {lab.lab.keys['root']}"},
        ):
            assert said(await lab.ask("GET", "/", host=host, headers=headers)) == (401, pages.LOCKED.title), headers
        assert not seen
        assert (await lab.ask("GET", "/", host=host, headers={"cookie": cookie})).status_code == 200


async def test_a_host_is_a_container_s_or_nobody_s_and_never_the_console_s(lab: Open) -> None:
    async with openlab.site(lab) as seen:
        host, cookie = await lab.enter()
        key = {"authorization": f"Bearer {lab.lab.keys['root']}", "cookie": cookie}
        for other in (
            f"{'0' * 24}.{DOMAIN}",
            f"x.{host}",
            f"console.{DOMAIN}",
            f".{DOMAIN}",
            f"{'0' * 24}.apps.localhost:8443",
            f"{host.partition('.')[0]}.apps.localhost.",
            f"{host[1:]}",
        ):
            for path in ("/console/login", "/v1/gpus", "/"):
                answer = await lab.ask("GET", path, host=other, headers=key)
                mine = other.startswith(host.partition(".")[0])  # a label is a label below either domain
                assert mine or said(answer) == (404, pages.UNKNOWN.title), (other, path)
        seen.clear()
        for own in (CONSOLE, f"{CONSOLE}:8443", "127.0.0.1", "localhost", DOMAIN, f"{DOMAIN}.evil.example", "[::1]:1"):
            answer = await lab.ask("GET", "/v1/gpus", host=own, headers=key)
            assert answer.json()["gpus"] is not None, own
        assert not seen
        page = await lab.ask("GET", "/console/login", host=host, headers={"cookie": cookie})
        assert page.json()["path"] == "/console/login", "the container's own, whatever its path is called"


async def test_what_proves_who_asks_never_reaches_the_container(lab: Open) -> None:
    key, session = lab.lab.keys["developer"], sessions.text_of(sessions.make())
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        answer = await lab.ask(
            "GET",
            "/",
            host=host,
            headers={
                "cookie": f"a=1; {cookie}; __Host-fairlead={session}; _xsrf=2",
                "authorization": f"Bearer {key}",
                "x-confirm-key": key,
                "x-forwarded-for": "6.6.6.6",
                "X_Forwarded_For": "6.6.6.6",
                "x-forwarded-host": "evil.example",
                "x-forwarded-prefix": "/evil",
                "forwarded": "for=6.6.6.6",
                "x-real-ip": "6.6.6.6",
                "connection": "close, x-secret",
                "x-secret": "hop",
                "te": "trailers",
                "proxy-authorization": "Basic eA==",
            },
        )
        got: dict[str, str] = {}
        for name, value in answer.json()["headers"]:
            assert name.lower() not in got, name
            got[name.lower()] = value
        for value in got.values():
            assert key not in value
            assert session not in value
            assert "6.6.6.6" not in value
            assert cookie.partition("=")[2] not in value
        assert (got["cookie"], got["host"], got["x-forwarded-host"]) == ("a=1; _xsrf=2", host, host)
        assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == ("127.0.0.1", "https")
        assert not {"x-secret", "te", "proxy-authorization", "authorization", "x-forwarded-prefix"} & set(got)
        own = {"cookie": cookie, "authorization": "token abc"}
        answer = await lab.ask("GET", "/", host=host, headers=own)
        passed = {name.lower(): value for name, value in answer.json()["headers"]}
        assert passed["authorization"] == "token abc", "the container's own server may have logins"


@pytest.mark.parametrize(
    ("headers", "method", "is_let"),
    [
        ({"sec-fetch-site": "same-origin", "origin": "https://HOST"}, "POST", True),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, "GET", True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, "GET", True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, "POST", False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, "GET", False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}, "GET", False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, "GET", False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "origin": "https://HOST"}, "GET", False),
        ({"origin": "https://HOST"}, "PUT", True),
        ({"origin": "http://HOST"}, "PUT", False),
        ({"origin": "null"}, "POST", False),
        ({"origin": f"https://{'0' * 24}.{DOMAIN}"}, "POST", False),
        ({"origin": f"https://{CONSOLE}"}, "POST", False),
    ],
)
async def test_pages_of_other_origins_may_lead_here_and_nothing_else(
    lab: Open, headers: dict[str, str], method: str, is_let: bool
) -> None:
    async with openlab.site(lab) as seen:
        host, cookie = await lab.enter()
        shown = {name: value.replace("HOST", host) for name, value in headers.items()}
        answer = await lab.ask(method, "/", host=host, headers={"cookie": cookie, **shown})
        assert (answer.status_code, len(seen)) == ((200, 1) if is_let else (403, 0))


async def test_a_session_s_port_is_its_browser_s_and_ends_with_it(lab: Open) -> None:
    async with openlab.site(lab):
        began = await lab.ask("POST", "/v1/session", json={"key": lab.lab.keys["developer"]})
        cookie = began.headers["set-cookie"].partition(";")[0]
        page = {"cookie": cookie, "origin": f"https://{CONSOLE}"}
        path = f"/v1/containers/web/ports/{PORT}/door"
        refused = await lab.ask("POST", path, headers=page, json={})
        assert refused.json()["reason"] == "CSRFTokenMissing"
        page["x-csrf-token"] = began.json()["csrf_token"]
        host, ticket = openlab.parts(await lab.ask("POST", path, headers=page, json={}))
        leave = await lab.redeem(host, ticket)
        assert (await lab.ask("GET", "/", host=host, headers={"cookie": leave})).status_code == 200
        same, second = openlab.parts(await lab.ask("POST", path, headers=page, json={}))
        assert same == host, "a browser learns one host for a port, and one certificate"
        assert (await lab.ask("GET", "/", host=host, headers={"cookie": await lab.redeem(host, second)})).is_success
        (grant,) = lab.grants._by_label.values()
        assert grant.wish.network == "127.0.0.1"
        assert (await lab.ask("DELETE", "/v1/session", headers=page)).status_code == 204
        assert said(await lab.ask("GET", "/", host=host, headers={"cookie": leave})) == (401, pages.LOCKED.title)
        assert len(lab.grants) == 0


async def test_who_comes_from_another_network_than_the_session_is_refused(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        (grant,) = lab.grants._by_label.values()
        _, ticket = await lab.ticket()
        grant.wish = _held(grant.wish, "192.0.2.7")
        assert said(await lab.ask("GET", "/", host=host, headers={"cookie": cookie}))[0] == 401
        assert said(await lab.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host))[1] == pages.ELSEWHERE.title


def _held(wish: Any, network: str) -> Any:
    return dataclasses.replace(wish, network=network)


async def test_each_request_is_judged_anew(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()

        async def asked() -> int:
            return (await lab.ask("GET", "/", host=host, headers={"cookie": cookie})).status_code

        assert await asked() == 200
        await lab.lab.grant("developer", "red", Role.VIEWER)
        assert await asked() == 401, "who may not enter containers any more"
        await lab.lab.grant("developer", "red", Role.DEVELOPER)
        assert await asked() == 404, "the grant is over for good"
        host, cookie = await lab.enter()
        await lab.lab.accounts.keys.revoke(lab.lab.keys["developer"][4:16], None)
        assert await asked() == 401


async def test_a_later_container_of_the_same_name_is_another(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        await lab.lab.ask("developer", "DELETE", "/v1/containers/web?grace=0")
        async with asyncio.timeout(10):
            while (await lab.lab.ask("developer", "GET", "/v1/containers/web")).status_code != 404:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await openlab.run(lab)
        answer = await lab.ask("GET", "/", host=host, headers={"cookie": cookie})
        assert answer.status_code in {401, 404}
        assert len(lab.grants) == 0


async def test_who_may_open_is_who_may_enter(lab: Open) -> None:
    for who, status in (("developer", 201), ("owner", 201), ("root", 201), ("viewer", 403), ("stranger", 404)):
        red = {"namespace": lab.lab.namespaces["red"]}
        assert (await lab.door(who, params=red)).status_code == status, who
    for path in ("//evil.example", "/\\evil.example", "https://evil.example", "x", "/a b", "/\r\nx", "/" * 3000):
        assert (await lab.door(path=path)).json()["reason"] == "PathInvalid", path
    for port in (0, 65536, 10**30):
        assert (await lab.door(port=port)).status_code == 400, port
    missing = await lab.door(name="none")
    assert (missing.status_code, missing.json()["reason"]) == (404, "ContainerNotFound")
    rows = (await lab.lab.ask("root", "GET", "/v1/audit")).json()["items"]
    opened = [one for one in rows if one["object"].endswith("/door") and one["status"] == 201]
    assert {one["account"] for one in opened} == {"developer", "owner", "root"}


async def test_one_caller_s_grants_and_connections_are_bounded(world: World, tmp_path: Path) -> None:
    (tmp_path / "accounts").mkdir()
    async with openlab.listening(world, tmp_path / "accounts", limits=Limits(connections=2)) as lab:
        await openlab.run(lab)
        for port in range(1, 40):
            await lab.ticket(port=port)
        host, cookie = await lab.enter()
        assert len(lab.grants) == 32
        async with openlab.site(lab), contextlib.AsyncExitStack() as held:
            client = await held.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{lab.port}"))
            headers = {"host": host, "cookie": cookie}
            for _ in range(2):
                await held.enter_async_context(client.stream("GET", "/events", headers=headers))
            busy = await lab.ask("GET", "/", host=host, headers={"cookie": cookie})
            assert said(busy) == (429, pages.BUSY.title)
            other_host, other = await lab.enter("admin")
            assert (await lab.ask("GET", "/", host=other_host, headers={"cookie": other})).status_code == 200
        async with openlab.site(lab), asyncio.timeout(10):
            while (await lab.ask("GET", "/", host=host, headers={"cookie": cookie})).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await lab.empty()


async def test_what_is_open_ends_within_seconds_of_the_leave(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{lab.port}", timeout=20) as client,
            client.stream("GET", "/events", headers={"host": host, "cookie": cookie}) as answer,
        ):
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            assert await anext(lines) == "data: 0"
            await lab.lab.accounts.keys.revoke(lab.lab.keys["developer"][4:16], None)
            with pytest.raises(httpx.RemoteProtocolError):
                await _read(lab, lines)
        assert len(lab.grants) == 0
        await lab.empty()


async def _read(lab: Open, lines: AsyncIterator[str]) -> None:
    """Read what is sent until it ends, while the grants' clock goes on."""
    async with asyncio.timeout(10):
        async for _ in lines:
            lab.time[0] += 0.6


async def test_a_port_where_nobody_listens_is_waited_for(lab: Open) -> None:
    host, cookie = await lab.enter()
    shown = {"cookie": cookie, **HTML}
    waits = await lab.ask("GET", "/", host=host, headers=shown)
    assert (waits.status_code, waits.headers["refresh"]) == (502, "2")
    assert f"Nothing listens on port {PORT} in the container yet" in waits.text
    async with openlab.site(lab):
        assert (await lab.ask("GET", "/", host=host, headers=shown)).status_code == 200


async def test_bodies_pass_whole_both_ways_beyond_the_api_s_own_limits(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        large = b"x" * (5 << 20)

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(large), 1 << 16):
                yield large[at : at + (1 << 16)]

        for content in (large, pieces()):
            answer = await lab.ask("PUT", "/f", host=host, headers={"cookie": cookie}, content=content)
            assert answer.json()["body"] == len(large)
            assert answer.headers["x-said"] == "PUT"


def _asked(host: str, cookie: str, *lines: str, method: str = "GET", target: str = "/") -> bytes:
    head = [f"{method} {target} HTTP/1.1", f"host: {host}", f"cookie: {cookie}", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1")


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (("content-length: 5", "transfer-encoding: chunked"), b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"),
        (("transfer-encoding: chunked", "transfer-encoding: identity"), b"0\r\n\r\n"),
        (("transfer-encoding: xchunked",), b"0\r\n\r\n"),
        (("transfer-encoding: chunked, identity",), b"0\r\n\r\n"),
        (("content-length: 5", "content-length: 6"), b"aaaaaa"),
        (("content-length: +5",), b"aaaaa"),
        (("content-length : 5",), b"aaaaa"),
        (("host: other.example",), b""),
        (("x: a\x00b",), b""),
        (("x: a", " folded: b"), b""),
    ],
)
async def test_what_two_servers_could_read_in_two_ways_is_refused(
    lab: Open, lines: tuple[str, ...], body: bytes
) -> None:
    taken: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(await reader.read(1 << 16))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        found = await lab.raw(_asked(host, cookie, "connection: close", *lines, method="POST") + body)
        assert b"smuggled" not in b"".join(taken)
        if b" 400 " not in found.partition(b"\r\n")[0]:
            # A folded line is one header in h11's eyes, and is written as one.
            assert lines == ("x: a", " folded: b"), found
            assert b"x: a folded: b\r\n" in taken[0]


@pytest.mark.parametrize("length", ["content-length", "content_length", "CONTENT_LENGTH", "Content-Length"])
async def test_a_connection_s_options_cannot_unframe_a_body(lab: Open, length: str) -> None:
    """`Connection: content-length` would have a proxy drop the length, and the body be the next request."""
    taken: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        taken.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        own = [] if length.lower() == "content-length" else [f"{length}: 99"]
        sent = _asked(host, cookie, f"connection: close, {length}", "content-length: 3", *own, method="POST")
        found = await lab.raw(sent + b"abc")
        assert found.startswith(b"HTTP/1.1 200")
        assert taken[0].lower().count(b"content-length: 3") == 1
        assert b": 99" not in taken[0]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("CONNECT", "/", 405),
        ("TRACE", "/", 405),
        ("GET", "http://gpu.lab.example/v1/gpus", 400),
        ("GET", "*", 400),
        ("GET", "evil", 400),
        ("GET", "//evil.example/x", 200),
        ("GET", "/../../v1/gpus", 200),
        ("GET", "/%2e%2e/%3Fx", 200),
        ("PROPFIND", "/pot", 200),
    ],
)
async def test_odd_targets_and_methods(lab: Open, method: str, target: str, status: int) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        found = await lab.raw(_asked(host, cookie, "connection: close", method=method, target=target))
        assert int(found.split(b" ")[1]) == status, found
        if status == 200:
            assert json.loads(found.partition(b"\r\n\r\n")[2])["path"] == target


@pytest.mark.parametrize(
    ("answer", "status", "title"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", 502, pages.UNREADABLE.title),
        (b"", 502, pages.UNREADABLE.title),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n", 502, pages.UNREADABLE.title),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 17) + b"\r\n\r\n", 502, pages.UNREADABLE.title),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 9\r\n\r\nok", 502, pages.UNREADABLE.title),
    ],
)
async def test_what_is_no_answer_is_said_and_passed_on_in_no_part(
    lab: Open, answer: bytes, status: int, title: str
) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        assert said(await lab.ask("GET", "/", host=host, headers={"cookie": cookie})) == (status, title)


async def test_what_follows_an_answer_is_nobody_s(lab: Open) -> None:
    """A server that answers twice would have the second answer taken for another request's."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        second = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + second)
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{lab.port}") as client:
            for _ in range(3):
                answer = await client.get("/", headers={"host": host, "cookie": cookie})
                assert answer.text == "ok"


async def test_headers_that_reach_beyond_the_host_are_withheld(lab: Open) -> None:
    lines = (
        "set-cookie: a=1; Domain=lab.example; Path=/",
        "set-cookie: b=2; domain = .apps.gpu.lab.example ; Secure",
        "set-cookie: __Host-fairlead=fls_x; Path=/; Secure",
        "set-cookie: __Host-fairlead-open=x; Path=/; Secure",
        "set-cookie: =__Host-fairlead=x",
        'clear-site-data: "*"',
        "strict-transport-security: max-age=1; includeSubDomains",
        'alt-svc: h2="evil.example:443"',
        "nel: {}",
        "origin-agent-cluster: ?0",
        "keep-alive: timeout=5",
        "x-frame-options: SAMEORIGIN",
        "service-worker-allowed: /",
        "location: http://HOST/next",
    )

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "\r\n".join(("HTTP/1.1 302 Found", *lines, "content-length: 0", "", "")).replace("HOST", host)
        writer.write(head.encode())
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        answer = await lab.ask("GET", "/", host=host, headers={"cookie": cookie})
        assert answer.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2; Secure"]
        assert answer.headers["location"] == f"https://{host}/next"
        assert answer.headers.get_list("origin-agent-cluster") == ["?1"]
        assert answer.headers["x-frame-options"] == "SAMEORIGIN"
        withheld = {"clear-site-data", "strict-transport-security", "alt-svc", "nel", "keep-alive"}
        assert not withheld & set(answer.headers)


async def test_a_server_that_stays_silent_and_one_that_breaks_off(world: World, tmp_path: Path) -> None:
    (tmp_path / "accounts").mkdir()
    hurried = Patience(head_s=0.2, body_s=0.2, idle_s=0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        writer.close()

    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await reader.read()
        writer.close()

    async with openlab.listening(world, tmp_path / "accounts", patience=hurried) as lab:
        await openlab.run(lab)
        host, cookie = await lab.enter()
        shown = {"cookie": cookie}
        async with await lab.serve(silent):
            assert said(await lab.ask("GET", "/", host=host, headers=shown)) == (504, pages.SILENT.title)
            head = _asked(host, cookie, "content-length: 9", method="POST")
            assert await lab.raw(head + b"half") == b"", "who sends no more is hung up on"
        for handle in (breaks, stalls):
            async with await lab.serve(handle):
                with pytest.raises(httpx.RemoteProtocolError):
                    await lab.ask("GET", "/", host=host, headers=shown)
        await lab.empty()


async def test_where_no_domain_is_set_others_than_the_machine_are_told_what_to_set(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "accounts").mkdir()
    async with openlab.listening(world, tmp_path / "accounts", domain="") as lab:
        await openlab.run(lab)
        refused = await lab.door()
        assert (refused.status_code, refused.json()["reason"]) == (400, "OpenDomainMissing")
        assert "api.open_domain" in refused.json()["hint"]
        for host, origin in (
            ("localhost:9000", ".apps.localhost:9000"),
            ("127.0.0.1:8443", ".apps.localhost:8443"),
            ("[::1]", ".apps.localhost"),
        ):
            found = await lab.door(host=host)
            assert found.json()["origin"].endswith(origin), host
