"""What podman says while it pulls, as people read it (5.4's words)."""

from __future__ import annotations

from fairlead.engine.podman import imagestore

_WHY = (
    b"initializing source docker://localhost/x:latest: pinging container registry localhost: "
    b'Get "https://localhost/v2/": dial tcp 127.0.0.1:443: connect: connection refused'
)
_WARNED = _WHY.replace(b'"', b'\\"')


def test_a_failure_is_said_once_and_a_retry_in_words() -> None:
    said = (
        b"Trying to pull localhost/x:latest...\n"
        b'time="2026-11-22T20:48:51Z" level=warning msg="Failed, retrying in 1s ... (1/3). Error: '
        + _WARNED
        + b'"\nError: '
        + _WHY
        + b"\n"
    )
    assert imagestore.pull_progress(said) == (
        b"Trying to pull localhost/x:latest...\nno answer, podman tries again in 1s (1/3)\n"
    )


def test_every_other_line_is_passed_on() -> None:
    said = b'Copying blob sha256:1\nWriting manifest\n\ntime="x" level=warning msg="short name"\n\xff'
    assert imagestore.pull_progress(said) == said
