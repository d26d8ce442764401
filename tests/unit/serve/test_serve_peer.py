"""Who is at the other end of the API's socket, asked of the kernel by real processes of real users."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.serve import peer, server, sockets

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
GROUP, MEMBER, STRANGER = 30001, 20001, 20002
_PIPE = asyncio.subprocess.PIPE
# The program is started as root, which may read it wherever it lies, and becomes the user before it connects.
_ASK = """
import http.client, os, socket, sys
path, uid, groups, headers = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
os.setgroups([int(one) for one in groups.split(",") if one])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
connection = http.client.HTTPConnection("x")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
for _ in range(2):  # a connection that is used again is the same caller's
    connection.request("GET", "/", headers=dict(one.split("=", 1) for one in headers))
    print(connection.getresponse().read().decode())
"""


async def _who(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    found = peer.of_state(scope["state"])
    body = f"{found.uid} {found.gid}".encode() if found else b"nobody"
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def path() -> AsyncIterator[Path]:
    # Not tmp_path, which only root may pass.
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    folder.chmod(0o755)
    ready = asyncio.Event()
    limits = sockets.Limits(per_user=3)
    async with asyncio.TaskGroup() as group:
        serving = server.serve_unix(_who, folder / "s", ready=ready, group=GROUP, limits=limits)
        task = group.create_task(serving)
        await ready.wait()
        yield folder / "s"
        task.cancel()
    shutil.rmtree(folder)


async def _ask(path: Path, uid: int, groups: str, *headers: str) -> tuple[int, str]:
    argv = (sys.executable, "-c", _ASK, str(path), str(uid), groups, *headers)
    child = await asyncio.create_subprocess_exec(*argv, stdout=_PIPE, stderr=_PIPE)
    out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, (out or err).decode()


async def test_the_group_may_connect_and_each_member_is_known(path: Path) -> None:
    about = path.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o660, 0, GROUP)
    assert await _ask(path, MEMBER, str(GROUP)) == (0, f"{MEMBER} {MEMBER}\n" * 2)
    assert await _ask(path, 0, "") == (0, "0 0\n" * 2)


async def test_who_is_not_in_the_group_cannot_connect(path: Path) -> None:
    code, words = await _ask(path, STRANGER, "")
    assert (code, "PermissionError" in words) == (1, True)


async def test_what_a_request_says_changes_nothing(path: Path) -> None:
    lies = ("X-Remote-User=root", "Authorization=Basic cm9vdA==", "Forwarded=for=0", "peer=0")
    assert await _ask(path, MEMBER, str(GROUP), *lies) == (0, f"{MEMBER} {MEMBER}\n" * 2)


async def test_a_user_has_so_many_connections_and_root_gets_in_beside_them(path: Path) -> None:
    hold = (
        "import os, socket, sys\n"
        "os.setgroups([int(sys.argv[3])]); uid = int(sys.argv[2]); os.setresgid(uid, uid, uid)\n"
        "os.setresuid(uid, uid, uid)\n"
        "held = [socket.socket(socket.AF_UNIX) for _ in range(4)]\n"
        "for one in held: one.connect(sys.argv[1])\n"
        "print(held[-1].recv(100).split()[1].decode(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = (sys.executable, "-c", hold, str(path), str(MEMBER), str(GROUP))
    child = await asyncio.create_subprocess_exec(*argv, stdin=_PIPE, stdout=_PIPE)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"503\n"
    assert (await _ask(path, 0, ""))[1] == "0 0\n" * 2
    await child.communicate(b"")
