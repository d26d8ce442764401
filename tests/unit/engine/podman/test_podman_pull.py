"""What podman says while it pulls, as people read it (5.4's words)."""

from __future__ import annotations

import pytest

from fairlead import command, errors
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


class _Podman:
    """A podman that is asked whether an image is there, and nothing else."""

    def __init__(self, code: int) -> None:
        self.code, self.asked = code, list[tuple[str, ...]]()

    async def run(self, *arguments: str) -> command.Result:
        self.asked.append(arguments)
        return command.Result(code=self.code, stdout=b"", stderr=b"")


class _Store(imagestore.PodmanImageStore):
    def __init__(self, podman: _Podman) -> None:
        self._podman = podman  # type: ignore[assignment]  # the one call that is made of it


@pytest.mark.parametrize(
    ("code", "kind", "said"), [(0, errors.Conflict, "is here already"), (1, errors.NotFound, "is not here")]
)
async def test_an_image_of_this_machine_is_asked_of_no_registry(
    code: int, kind: type[errors.FairleadError], said: str
) -> None:
    podman = _Podman(code)
    with pytest.raises(kind, match=said) as refused:
        await anext(_Store(podman).pull_lines("localhost/demo"))
    assert refused.value.hint
    assert podman.asked == [("image", "exists", "--", "localhost/demo")]
