"""The fake's programs, where the contract does not reach."""

from __future__ import annotations

import pytest

from fairlead.engine.fake import exec as fake_exec
from fairlead.engine.fake import shell


async def nothing() -> bytes:
    return b""


async def run(*argv: str, memory_limit_bytes: int | None = None) -> tuple[int, bytes]:
    output: list[bytes] = []
    process = shell.Process(
        emit=output.append, read=nothing, env={"A": "b"}, hostname="pod", memory_limit_bytes=memory_limit_bytes
    )
    return await shell.run(process, argv), b"".join(output)


@pytest.mark.parametrize(
    ("script", "code", "output"),
    [
        ("echo a; echo 'b;c' >&2\nhostname", 0, b"a\nb;c\npod\n"),
        ("false", 1, b""),
        ("false; exit", 1, b""),
        ("echo a; exit 7; echo b", 7, b"a\n"),
        ("nosuch", 127, b"sh: nosuch: not found\n"),
        ("", 0, b""),
    ],
)
async def test_scripts_run_statement_by_statement(script: str, code: int, output: bytes) -> None:
    assert await run("/bin/sh", "-c", script) == (code, output)


@pytest.mark.parametrize(("block", "fits"), [("bs=31M", True), ("bs=33M", False), ("bs=1G", False)])
async def test_memory_taken_is_held_against_the_limit(block: str, fits: bool) -> None:
    limit = 32 << 20
    if fits:
        assert (await run("dd", block, memory_limit_bytes=limit))[0] == 0
    else:
        with pytest.raises(shell.Killed):
            await run("dd", block, memory_limit_bytes=limit)
    assert (await run("dd", block))[0] == 0


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("web", "localhost/web:latest"),
        ("web:2", "localhost/web:2"),
        ("team/web:2", "localhost/team/web:2"),
        ("localhost/web", "localhost/web:latest"),
        ("registry.example.com:5000/web", "registry.example.com:5000/web:latest"),
    ],
)
def test_names_are_completed_as_podman_does(name: str, full: str) -> None:
    assert fake_exec.full_name(name) == full
