"""NO_COLOR and TERM=dumb: on a real terminal no escape is printed, and no line is written over."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.core import invocation

_COMMAND = (sys.executable, "-m", "fairlead.cli.main")
_HOST = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def on_a_terminal(env: dict[str, str], *argv: str) -> bytes:
    """What a terminal is sent by one command line, standard output and error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen((*_COMMAND, *argv), env={**_HOST, **env}, stdin=theirs, stdout=theirs, stderr=theirs) as done:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # EIO: the last process has closed it
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    assert done.returncode != 0
    return b"".join(parts)


_UP = ("up", "--simulate", "nosuch", "--state-folder", "{folder}/state")


@pytest.mark.parametrize(
    ("argv", "env", "is_plain"),
    [
        (("ps",), {"TERM": "xterm"}, False),
        (("ps",), {"TERM": "xterm", "NO_COLOR": ""}, False),
        (("ps",), {"TERM": "xterm", "NO_COLOR": "1"}, True),
        (("ps",), {"TERM": "dumb"}, True),
        (_UP, {"TERM": "xterm"}, False),
        (_UP, {"TERM": "dumb"}, True),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    tmp_path: Path, env: dict[str, str], is_plain: bool, argv: tuple[str, ...]
) -> None:
    env = {**env, "FAIRLEAD_API_SOCKET": str(tmp_path / "none.sock"), "FAIRLEAD_NODE_CDI_FOLDER": str(tmp_path / "cdi")}
    shown = on_a_terminal(env, *(word.format(folder=tmp_path) for word in argv))
    assert b"error: " in shown
    assert (b"\x1b[" not in shown) == is_plain


@pytest.mark.parametrize(
    ("form", "word", "wanted"),
    [("console", "NO_COLOR=1", "plain"), ("console", "TERM=dumb", "plain"), ("json", "TERM=dumb", "json")],
)
def test_the_log_has_no_colour_either_in_any_process(form: str, word: str, wanted: str) -> None:
    name, _, value = word.partition("=")
    found = invocation.Invocation(env={name: value, "FAIRLEAD_LOG_FORMAT": form}).settings()
    assert settings.environment(found)["FAIRLEAD_LOG_FORMAT"] == wanted
