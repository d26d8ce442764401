"""What the Python client says where a service, or who uses it, goes wrong; over a transport that a test writes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead import Client, errors
from fairlead.client import calls, httptransport, place, record, transport
from fairlead.client.session import copying, logs, process

_DONE = json.dumps({"exit_code": 0})
_ENV = {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}


@dataclass
class Script:
    """Answers each request with the next of its bodies, and each session with the same frames."""

    bodies: list[bytes] = field(default_factory=list)
    said: list[bytes | str] = field(default_factory=list)
    sent: list[bytes | str] = field(default_factory=list)
    address: str = "test"
    status: int = 200

    @contextlib.contextmanager
    def send(self, request: transport.Request, *, timeout_s: float | None) -> Iterator[transport.Answer]:
        yield self

    @contextlib.contextmanager
    def connect(self, target: str) -> Iterator[transport.Session]:
        yield Session(self)

    def header(self, name: str) -> str:
        return ""

    def read(self) -> bytes:
        return self.bodies.pop(0)

    def pieces(self) -> Iterator[bytes]:
        yield from self.bodies

    def close(self) -> None:
        pass


@dataclass
class Session:
    script: Script

    def frames(self) -> Iterator[bytes | str]:
        return iter(self.script.said)

    def send(self, frame: bytes | str) -> None:
        self.script.sent.append(frame)


def packed(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            one = tarfile.TarInfo(name)
            one.size = 5
            archive.addfile(one, io.BytesIO(b"hello"))
    return made.getvalue()


def output(data: bytes) -> bytes:
    return b"\1" + data


def test_an_empty_name_reaches_no_other_route() -> None:
    for name in ("", ".", ".."):
        with pytest.raises(errors.Invalid, match="is no name") as caught:
            calls.container_path(name)
        assert caught.value.reason == "NameInvalid"


def test_what_is_sent_can_be_observed_requests_and_sessions_alike() -> None:
    service = calls.Calls(Script(bodies=[b"{}"]))
    seen: list[str] = []
    service.observe = lambda request: seen.append(f"{request.method} {request.target}")
    service.get("/v1/status")
    with service.connect("/v1/x", [("a", "b c")]):
        pass
    assert seen == ["GET /v1/status", "GET /v1/x?a=b+c"]


def test_lines_end_with_the_answer_or_with_the_problem_that_its_last_line_says() -> None:
    problem = {"type": "about:blank", "title": "Gone", "status": 404, "detail": "it is gone", "reason": "PodNotFound"}
    assert list(calls.Calls(Script(bodies=[b'{"a":1}\n{"b"', b":2}\n"])).lines("GET", "/v1/x")) == [{"a": 1}, {"b": 2}]
    with pytest.raises(errors.NotFound, match="it is gone"):
        list(calls.Calls(Script(bodies=[json.dumps({"problem": problem}).encode() + b"\n"])).lines("GET", "/v1/x"))
    with pytest.raises(errors.ProtocolError) as caught:
        list(calls.Calls(Script(bodies=[b"no json\n"])).lines("GET", "/v1/x"))
    assert caught.value.reason == "AnswerUnreadable"


def test_a_session_that_broke_off_ends_with_no_code_of_its_own() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        process.exit_code(None)
    assert caught.value.reason == "ServiceBrokeOff"


def test_what_does_not_go_together_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(errors.Invalid, match="a tenancy has a namespace of its own"):
        Client("/run/x.sock", tenancy="red", namespace="default")
    with pytest.raises(errors.Invalid, match='context "lab"'):
        place.carrier("https://lab", context="lab", env=_ENV)
    with pytest.raises(errors.Invalid, match="no address to send it to"):
        place.carrier(None, key="k", env=_ENV)
    with pytest.raises(errors.Invalid, match="over https only") as caught:
        place.carrier("http://lab", key="k", env=_ENV)
    assert caught.value.reason == "KeyInClear"


def test_a_line_without_end_is_given_in_parts_and_the_last_one_without_its_end_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_LONGEST", 4)
    told = logs.Logs(lambda: contextlib.nullcontext(iter([b"one\ntwo", b"three", b"\nend"])), "a")
    assert list(told) == ["one", "twothree", "", "end"]


def test_a_notebook_shows_values_within_values_escaped_and_cut() -> None:
    shown = record.Listing([Holder(inner=Inner(name="<b>"))], columns=("inner", "labels", "all", "none"))._repr_html_()
    assert "name=&lt;b&gt;" in shown
    assert "team: red" in shown
    assert "<td>1, 2</td><td></td>" in shown


class Inner(record.Record, frozen=True):
    name: str


@dataclass
class Holder:
    inner: record.Record
    labels: dict[str, str] = field(default_factory=lambda: {"team": "red"})
    all: tuple[int, ...] = (1, 2)
    none: None = None


@pytest.mark.parametrize(
    ("mode", "group", "message", "hint"),
    [
        (0o600, 0, "may be opened by root only", "api.group"),
        (0o660, 54321, 'members of group "54321"', "usermod -aG 54321"),
    ],
)
def test_a_socket_that_is_not_ours_says_whose_it_is(
    mode: int, group: int, message: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "api.sock"
    path.touch(mode)
    path.chmod(mode)
    if group and os.geteuid():
        pytest.skip("only root may give a file away")
    os.chown(path, -1, group or -1)
    said, next_step = httptransport._closed(path)
    assert message in said
    assert hint in next_step


def test_a_socket_behind_a_closed_folder_says_who_to_ask(tmp_path: Path) -> None:
    said, hint = httptransport._closed(tmp_path / "gone/api.sock")
    assert "cannot be reached: No such file or directory" in said
    assert "ask root" in hint


def test_who_is_a_member_since_the_login_is_told_to_log_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "api.sock"
    path.touch(0o660)
    path.chmod(0o660)
    monkeypatch.setattr(httptransport, "_members", lambda _: [httptransport._login_name()])
    said, hint = httptransport._closed(path)
    assert "was not one yet at login" in said
    assert "newgrp" in hint


# Copies


def test_both_or_neither_end_in_the_container_is_refused() -> None:
    for one, other in (("a", "b"), (":/a", ":/b")):
        with pytest.raises(errors.Invalid) as caught:
            copying.check_ends(one, other)
        assert caught.value.reason == "CopyEnds"
    copying.check_ends("a", ":/b")


def copied_out(script: Script, target: Path) -> None:
    copying.copy_out(calls.Calls(script), copying.End(path="/data", container="a"), target)


def test_an_archive_that_is_cut_off_leaves_what_came_of_it_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="not a whole archive") as caught:
        copied_out(Script(said=[output(packed("data")[:514]), _DONE]), tmp_path / "data")
    assert caught.value.reason == "CopyFailed"


def test_the_containers_own_complaint_is_said_and_a_number_where_there_is_none(tmp_path: Path) -> None:
    failed = json.dumps({"exit_code": 2})
    for said, words in (([b"\2tar: a\n", b"\2Error: no space\n"], "no space"), ([], "it ended with 2")):
        with pytest.raises(errors.Invalid, match=f"cannot copy a:/data: {words}"):
            copied_out(Script(said=[*said, failed]), tmp_path / "data")


def test_a_service_that_breaks_off_is_no_end_of_a_copy(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        copied_out(Script(said=[output(packed("data"))]), tmp_path / "data")
    assert caught.value.reason == "ServiceBrokeOff"
    assert (tmp_path / "data").read_bytes() == b"hello"


@pytest.mark.parametrize("source", ["none", "folder/deep"])
def test_a_source_that_cannot_be_read_is_named_and_nothing_is_sent(source: str, tmp_path: Path) -> None:
    script = Script(said=[_DONE])
    with pytest.raises(errors.Invalid, match="cannot read") as caught:
        copying.copy_in(calls.Calls(script), str(tmp_path / source), copying.End(path="/data/", container="a"))
    assert (caught.value.reason, script.sent) == ("CopyFailed", [])


@pytest.mark.parametrize(
    ("source", "path", "names", "said"),
    [
        ("folder/.", "/data", [".", "./f"], []),
        ("folder", "/data/", ["folder", "folder/f"], []),
        ("folder", "/data", ["folder", "folder/f"], [output(b"")]),
        ("folder", "/data", ["data", "data/f"], []),
        ("folder", "/", ["folder", "folder/f"], []),
    ],
)
def test_a_source_gets_the_name_that_cp_would_give_it(
    source: str, path: str, names: list[str], said: list[bytes | str], tmp_path: Path
) -> None:
    """A folder of the container receives it: what `/data` is, the first member of its tar says."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/f").write_text("hello")
    if said:
        there = tarfile.TarInfo("data")
        there.type = tarfile.DIRTYPE
        said = [output(there.tobuf() + bytes(1024))]
    script = Script(said=[*said, _DONE])
    copying.copy_in(calls.Calls(script), f"{tmp_path}/{source}", copying.End(path=path, container="a"))
    data = b"".join(frame for frame in script.sent if isinstance(frame, bytes))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r") as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == names
    assert {(member.uid, member.uname) for member in members} == {(0, "")}


def test_a_source_that_shrinks_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("hello")
    monkeypatch.setattr(tarfile.TarFile, "add", lambda *_args, **_more: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(errors.Invalid, match=r"cannot read .*/f: I/O error"):
        copying.copy_in(calls.Calls(Script(said=[_DONE])), str(tmp_path / "f"), copying.End(path="/x/", container="a"))


def test_a_tar_of_an_open_file_goes_in_as_it_is_and_comes_out_as_it_is() -> None:
    data, script = packed("f"), Script(said=[_DONE])
    copying.copy_in(calls.Calls(script), io.BytesIO(data), copying.End(path="/", container="a"), keeps_owners=True)
    assert b"".join(frame for frame in script.sent[:-1] if isinstance(frame, bytes)) == data
    assert script.sent[-1] == process.END_OF_INPUT
    back = io.BytesIO()
    copying.copy_out(calls.Calls(Script(said=[output(data), _DONE])), copying.End(path="/f", container="a"), back)
    assert back.getvalue() == data


def test_a_copy_whose_end_is_not_told_is_not_done() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        copying.copy_in(calls.Calls(Script()), io.BytesIO(b""), copying.End(path="/", container="a"))
    assert caught.value.reason == "ServiceBrokeOff"


def test_a_value_that_is_not_text_is_refused_by_its_key() -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(TypeError, match=r"env\['B'\] is 1, not text: env=\{'B': '1'\}"):
        client.run("demo", env={"A": "x", "B": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"labels\['team'\] is True"):
        client.dry_run("demo", labels={"team": True})  # type: ignore[dict-item]
