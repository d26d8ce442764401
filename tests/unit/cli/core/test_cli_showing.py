"""`--show-request`: the curl line of what a verb sends; the key is never in it."""

from __future__ import annotations

import json
import shlex

import pytest

from fairlead.cli.core import showing
from fairlead.cli.core.target import Target
from fairlead.client.contexts import Context
from fairlead.client.transport import Request
from tests.unit.cli.liveservice import Service

KEY = "flk_0123456789ab_" + "c" * 64
LAB = Context(name="lab", url="https://lab:8443", key=KEY, fingerprint="sha256//x=")
GET = Request(method="GET", target="/v1/containers?all=true")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (
            Target(url="http+unix:///run/x y.sock"),
            "curl --unix-socket '/run/x y.sock' 'http://fairlead/v1/containers?all=true'",
        ),
        (Target(url="https://ann:secret@lab"), "curl 'https://lab/v1/containers?all=true'"),
        (
            Target(url=LAB.url, login=LAB),
            'curl -H "Authorization: Bearer $FAIRLEAD_KEY" --insecure --pinnedpubkey sha256//x='
            " 'https://lab:8443/v1/containers?all=true'",
        ),
        (Target(is_cluster=True), "curl \"$FAIRLEAD_URL\"'/v1/containers?all=true'"),
    ],
)
def test_the_line_can_be_pasted_and_holds_no_secret(target: Target, line: str) -> None:
    assert showing.line(target, GET) == line
    assert KEY not in line


def test_a_body_is_readable_json_and_a_session_a_remark() -> None:
    made = showing.line(Target(url="/run/x"), Request(method="POST", target="/v1/a", body=b'{"a":"it\'s"}'))
    assert json.loads(shlex.split(made)[-1]) == {"a": "it's"}
    session = Request(method="GET", target="/v1/a/exec?command=ls", headers={"upgrade": "websocket"})
    assert showing.line(Target(url="http://lab"), session) == "# WebSocket: 'http://lab/v1/a/exec?command=ls'"


@pytest.mark.parametrize("before", [True, False])
def test_a_verb_shows_what_it_sends_and_sends_it(service: Service, before: bool) -> None:
    words = ("run", "-g", "1", "--name", "a", "demo", "echo", "x\x1b[2J")
    asked = ("--show-request", *words) if before else (words[0], "--show-request", *words[1:])
    done = service.fairlead(*asked)
    assert done.exit_code == 0
    others = [line for line in done.stderr.split("curl ") if line.strip()]
    (post,) = (line for line in others if "--data" in line)
    assert json.loads(shlex.split(post)[-1]) == {
        "name": "a",
        "namespace": "default",
        "image": "demo",
        "args": ["echo", "x\x1b[2J"],
        "gpus": 1,
    }
    assert sum("/wait" in line for line in others) == 1
    assert "\x1b[2J" not in done.stderr
