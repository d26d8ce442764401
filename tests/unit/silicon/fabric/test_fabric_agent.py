"""The agent beside a Manager and its client: both prove who they are, and neither believes the other's bytes."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.fabric import ManagerIdentity
from fairlead.silicon.fabric import address, agentclient, agentserver, connection, frame, message
from tests.unit.silicon.fabric.conftest import Bench

SECRET = b"s" * 32


class Served:
    def __init__(
        self,
        bench: Bench,
        folder: Path,
        whereabouts: agentserver.Whereabouts | None = None,
        *,
        greeting_s: float = 0.2,
    ) -> None:
        self.fault: OSError | None = None
        self.path = folder / "agent.sock"
        self.allowed = True
        self.stack = ExitStack()
        self.manager = connection.Connection("fm", bench.connect)
        self.server = agentserver.AgentServer(
            self.manager,
            SECRET,
            timeout_s=2,
            is_allowed=self.may_knock,
            whereabouts=whereabouts,
            greeting_s=greeting_s,
        )
        self.server.listen(address.parse(str(self.path)))

    def may_knock(self, _: socket.socket) -> bool:
        if self.fault is not None:
            raise self.fault
        return self.allowed

    def client(self, secret: bytes = SECRET) -> agentclient.AgentClient:
        made = agentclient.AgentClient(address.parse(str(self.path)), secret, timeout_s=2)
        self.stack.callback(made.close)
        return made

    def dial(self) -> socket.socket:
        one = self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        one.connect(str(self.path))  # waits where many others knock
        one.settimeout(2)
        return one


@pytest.fixture
def served(bench: Bench, tmp_path: Path) -> Iterator[Served]:
    made = Served(bench, tmp_path)
    yield made
    made.stack.close()
    made.server.close()
    made.manager.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_every_call_goes_through_and_arrives_as_it_was(bench: Bench, served: Served) -> None:
    manager = bench.start()
    client, direct = served.client(), bench.connect()
    client.activate(1)
    assert client.list_partitions() == direct.list_partitions()
    client.deactivate(1)
    client.set_active({2, 3})
    manager.faults["links"] = ""
    assert (client.list_failed(), client.list_unsupported()) == (direct.list_failed(), direct.list_unsupported())
    assert manager.journal == ["activate 1", "deactivate 1", "set [2, 3]"]
    client.close()
    with pytest.raises(errors.Unavailable):
        client.list_partitions()


def test_an_agent_says_which_start_machine_and_version_its_manager_has(bench: Bench, tmp_path: Path) -> None:
    said = ["5d8f", "580.95.05"]
    whereabouts = agentserver.Whereabouts(machine=lambda: said[0], version=lambda: said[1])
    served = Served(bench, tmp_path, whereabouts)
    with served.stack:
        manager = bench.start()
        client = served.client()
        first = client.identify()
        assert (first.machine, first.version) == ("5d8f", "580.95.05")
        assert served.client().identify() == first, "one connection of the agent's, one start"
        said[:] = "", ""
        assert client.identify() == ManagerIdentity(start=first.start)
        manager.stop()
        bench.start()
        with pytest.raises(errors.Unavailable):
            client.list_partitions()
        assert served.client().identify().start != first.start
    served.server.close()
    served.manager.close()


def test_an_answer_without_a_start_is_none(stack: ExitStack) -> None:
    with pytest.raises(errors.ProtocolError, match="which start"):
        _pair(stack, _body(b"{}")).identify()


def test_errors_arrive_with_their_code_and_act(bench: Bench, served: Served) -> None:
    bench.start()
    client = served.client()
    client.activate(3)
    with pytest.raises(errors.Conflict, match="RESOURCE_IN_USE, -12") as caught:
        client.activate(1)
    assert (caught.value.reason, caught.value.context["code"]) == ("FabricResourceInUse", -12)
    bench.start().faults["not ready"] = ""


def test_no_manager_behind_the_agent_is_told_as_such(served: Served) -> None:
    with pytest.raises(errors.Unavailable, match="cannot be reached") as caught:
        served.client().list_partitions()
    assert caught.value.reason == "FabricConnectionNotValid"


@pytest.mark.parametrize("wrong", [b"t" * 32, SECRET + b"\n"])
def test_a_client_without_the_secret_is_refused(served: Served, wrong: bytes) -> None:
    with pytest.raises(errors.Denied) as caught:
        served.client(wrong)
    assert "fabric.secret" in str(caught.value.hint)


def test_an_agent_without_the_secret_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"FAIRLEADFABRIC1\n" + bytes(32) + bytes(32))
        with pytest.raises(errors.Denied, match="does not have this secret"):
            frame.greet(ours, SECRET)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(64))
        with pytest.raises(errors.ProtocolError, match="no `fairlead fabric serve`"):
            frame.greet(ours, SECRET)


def _pair(stack: ExitStack, play: Callable[[socket.socket], None]) -> agentclient.AgentClient:
    """A client whose agent has the secret and then does what it likes."""
    ours, theirs = map(stack.enter_context, socket.socketpair())
    ours.settimeout(0.3)
    thread = threading.Thread(target=play, args=(theirs,), daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(ours.close)
    client = agentclient.AgentClient.__new__(agentclient.AgentClient)
    client._name, client._socket = "liar", ours
    client._channel = frame.greet(ours, SECRET)
    return client


def _body(answer: bytes) -> Callable[[socket.socket], None]:
    def play(one: socket.socket) -> None:
        channel = frame.accept(one, SECRET, limit_s=5)
        channel.receive()
        channel.send(answer)
        one.recv(1)  # until the client leaves

    return play


GPU = {"module": 1}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"partitions": [{"id": 1, "gpus": [GPU]}] * 65}, "FabricAnswerInvalid"),
        ({"partitions": [{"id": 1, "gpus": [GPU] * 17}]}, "FabricAnswerInvalid"),
        ({"partitions": [{"id": -1, "gpus": [GPU]}]}, "FabricAnswerInvalid"),
        ({"partitions": [{"id": 1, "gpus": [GPU]}] * 2}, "FabricListInvalid"),
        ({"partitions": [{"id": 1, "gpus": [{"module": 99}]}]}, "FabricListInvalid"),
        ({"partitions": [{"id": 1, "gpus": [{"module": 1, "uuid": "x" * 81}]}]}, "FabricAnswerInvalid"),
        ({"surprise": 1}, "FabricAnswerInvalid"),
        ({"identity": {"start": "\x1b[2J"}}, "FabricAnswerInvalid"),
        ({"identity": {"start": "a" * 65}}, "FabricAnswerInvalid"),
        ({"identity": {"start": "a", "version": "580.1\n"}}, "FabricAnswerInvalid"),
        ({"identity": {"start": "a", "machine": "/../b"}}, "FabricAnswerInvalid"),
        ([], "FabricAnswerInvalid"),
        ({"error": {"kind": "Exit", "reason": "\x1b[2J", "message": "m"}}, "FabricAgentOdd"),
        ({"error": {"kind": "Denied", "reason": "R", "message": "m" * 2401}}, "FabricAnswerInvalid"),
    ],
)
def test_an_agent_that_lies_is_not_believed(stack: ExitStack, answer: object, reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        _pair(stack, _body(msgspec.json.encode(answer))).list_partitions()
    assert caught.value.reason == reason


def test_an_agent_that_stalls_floods_or_sends_again_is_left(stack: ExitStack) -> None:
    def stall(one: socket.socket) -> None:
        frame.accept(one, SECRET, limit_s=5)
        one.recv(1)
        one.recv(1000)

    def flood(one: socket.socket) -> None:
        frame.accept(one, SECRET, limit_s=5).receive()
        one.sendall(struct.pack(">I", 1 << 31) + bytes(64))

    def again(one: socket.socket) -> None:
        seen = [stack.enter_context(end) for end in socket.socketpair()]
        channel = frame.accept(one, SECRET, limit_s=5)
        channel.receive()
        channel._socket = seen[0]
        channel.send(message.encode(message.Answer()))
        sent = seen[1].recv(4096)
        one.sendall(sent + sent)
        one.recv(1)

    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        _pair(stack, stall).list_partitions()
    with pytest.raises(errors.ProtocolError, match="was announced"):
        _pair(stack, flood).list_partitions()
    client = _pair(stack, again)
    assert client.list_partitions() == ()
    with pytest.raises(errors.ProtocolError, match="sent before"):
        client.list_partitions()
    with pytest.raises(errors.Unavailable):
        client.list_partitions()


def test_a_caller_that_says_nothing_or_nonsense_is_cut_off_and_others_go_on(bench: Bench, served: Served) -> None:
    bench.start()
    silent = served.dial()
    client = served.client()
    assert len(client.list_partitions()) == 15
    began = time.monotonic()
    assert len(silent.recv(1000)) == 48
    assert silent.recv(1) == b""
    assert time.monotonic() - began < 1.5
    rude = served.dial()
    channel = frame.greet(rude, SECRET)
    channel.send(b'{"call": "explode"}')
    assert rude.recv(1) == b""
    assert len(client.list_partitions()) == 15


def test_who_is_not_allowed_takes_no_place_and_there_are_few_places(bench: Bench, served: Served) -> None:
    bench.start()
    served.allowed = False
    with pytest.raises(errors.Unavailable):
        served.client()
    served.allowed = True
    clients = [served.client() for _ in range(agentserver._PLACES)]
    for one in clients:  # each has its place once it is answered
        assert len(one.list_partitions()) == 15
    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        served.client().list_partitions()
    clients[0].close()
    for _ in range(200):
        try:
            assert len(served.client().list_partitions()) == 15
            break
        except errors.FairleadError:
            time.sleep(0.01)
    else:
        pytest.fail("the place was not given on")


def test_a_caller_that_proves_itself_byte_by_byte_has_no_longer_than_others(served: Served) -> None:
    slow = served.dial()
    assert len(slow.recv(1000)) == 48
    began = time.monotonic()
    with suppress(OSError):
        while time.monotonic() - began < 3:
            slow.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() - began < 1.5


def test_whoever_knocks_without_the_secret_does_not_keep_out_who_has_it(bench: Bench, tmp_path: Path) -> None:
    """By vsock every process of the host may knock: one that holds all it can open must not hide the fabric."""
    bench.start()
    served = Served(bench, tmp_path, greeting_s=30)
    with served.stack:
        strangers = [served.dial() for _ in range(4 * agentserver._WAITING)]
        assert len(strangers[-1].recv(1000)) == 48  # all were taken in
        assert len(served.client().list_partitions()) == 15
        while strangers[0].recv(1000):
            pass
        assert sum(one.name == "fabric-client" for one in threading.enumerate()) <= agentserver._WAITING + 3
    served.server.close()
    served.manager.close()


def test_a_caller_that_is_gone_before_it_is_looked_at_costs_nothing(bench: Bench, served: Served) -> None:
    bench.start()
    served.fault = OSError(107, "Transport endpoint is not connected")
    with pytest.raises(errors.Unavailable):
        served.client()
    served.fault = None
    assert len(served.client().list_partitions()) == 15


def test_callers_that_are_turned_away_do_not_fill_the_log(served: Served) -> None:
    served.allowed = False
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            one = served.dial()
            assert one.recv(1) == b""
    assert [line["event"] for line in logs] == ["fabric client turned away"]


def test_the_socket_is_its_owners_alone_and_a_dead_one_is_replaced(bench: Bench, served: Served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    second = agentserver.AgentServer(served.manager, SECRET, timeout_s=1, is_allowed=lambda _: True)
    with pytest.raises(errors.Unavailable, match="another one listens"):
        second.listen(address.parse(str(served.path)))
    served.server.close()
    second.listen(address.parse(str(served.path)))
    second.close()
    with pytest.raises(errors.Invalid, match="is TCP"):
        second.listen(address.parse("127.0.0.1:1"))
    with pytest.raises(errors.Invalid, match="is TCP"):
        agentclient.AgentClient(address.parse("127.0.0.1:1"), SECRET, timeout_s=1)


def test_a_secret_is_its_owners_alone_and_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for mode, text, said in ((0o644, "x" * 44, "by others"), (0o600, "short", "5 bytes"), (0o600, "x" * 5000, "bytes")):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(errors.Unavailable, match=said) as caught:
            agentclient.read_secret(path)
        assert caught.value.reason == "FabricSecretUnusable"
    for odd in (tmp_path / "none", tmp_path, Path("a\0b")):
        with pytest.raises(errors.Unavailable, match="cannot be read"):
            agentclient.read_secret(odd)
    path.write_text("x" * 44 + "\n")
    assert agentclient.read_secret(path) == b"x" * 44


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_secret_of_another_user_or_one_that_never_ends_is_none(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * 44)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(errors.Unavailable, match="belongs to user 65534"):
        agentclient.read_secret(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for odd in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(errors.Unavailable, match="not a regular file"):
            agentclient.read_secret(odd)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_readers_of_calls_and_answers(body: bytes) -> None:
    for read in (message.parse_request, message.parse_answer):
        with suppress(errors.FairleadError):  # nothing else
            read(body)
