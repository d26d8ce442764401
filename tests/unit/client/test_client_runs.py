"""The Python client against a live service: what a program does with containers, and what it is told."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from pathlib import Path

import pytest

from fairlead import Client, errors
from fairlead.client.container import ENDED
from tests.unit.cli.liveservice import Service


def test_a_container_is_run_followed_and_waited_for(client: Client) -> None:
    made = client.run("demo", ["echo", "hello"], gpus=2, name="train", env={"A": "b"}, labels={"team": "red"})
    assert list(made.logs(follow=True)) == ["hello"]
    assert (made.wait().state, made.exit_code, made.gpus) == ("succeeded", 0, 2)
    assert repr(made) == "<Container train succeeded: Completed>"
    assert [one.name for one in client.containers()] == []
    assert [one.name for one in client.containers(ended=True, labels={"team": "red"})] == ["train"]
    assert client.container("train").view == made.refresh().view


def test_exit_codes_and_both_streams_of_a_process_come_back(client: Client) -> None:
    made = client.run("demo", ["sleep", "60"])
    done = made.exec(["sh", "-c", "echo in; echo wrong >&2; exit 3"])
    assert (done.exit_code, done.text, done.errors) == (3, "in\n", b"wrong\n")
    data = b"x" * 300_000
    assert made.exec(["cat"], stdin=data).output == data
    assert made.stop(grace_s=0).wait().state == "stopped"
    with pytest.raises(errors.Conflict, match="is not running") as refused:
        made.exec(["true"])
    assert refused.value.reason == "ContainerNotRunning"


def test_a_wait_that_is_over_returns_what_it_is(client: Client) -> None:
    made = client.run("demo", ["sleep", "60"], name="a")
    assert made.wait(timeout_s=0.05).state not in ENDED
    assert made.remove(grace_s=0).wait("gone").state == "gone"
    with pytest.raises(errors.NotFound) as unknown:
        client.container("a")
    assert unknown.value.hint


def test_files_go_in_and_come_back(client: Client, tmp_path: Path) -> None:
    made = client.run("demo", ["sleep", "60"])
    (tmp_path / "file").write_bytes(b"some\x00bytes")
    made.cp(tmp_path / "file", ":/tmp/")
    made.cp(":/tmp/", tmp_path / "back")
    assert [path.read_bytes() for path in tmp_path.glob("back*")] == [b"some\x00bytes"]
    with pytest.raises(errors.Invalid) as refused:
        made.cp(":/tmp/nosuch", tmp_path)
    assert refused.value.reason == "CopyFailed"


def test_what_is_not_there_is_said_while_it_is_waited_for(client: Client) -> None:
    made = client.run("demo", ["sleep", "60"], namespace="default")
    made.remove(grace_s=0).wait("gone")
    with pytest.raises(errors.NotFound):
        made.wait()


def test_errors_are_the_services_own_with_their_reason(client: Client) -> None:
    client.run("demo", ["sleep", "60"], name="a")
    with pytest.raises(errors.Conflict):
        client.run("demo", name="a")
    with pytest.raises(errors.Invalid):
        client.run("demo", gpus=0.5)
    with pytest.raises(TypeError, match="has no option gpu; there are "):
        client.run("demo", gpu=1)  # type: ignore[call-arg]  # what is tested
    with pytest.raises(TypeError, match="list of words"):
        client.run("demo", "echo hello")
    with pytest.raises(errors.NotFound):
        str(client.container("a").logs(container="nobody"))


def test_output_is_cut_dated_and_read_again(client: Client) -> None:
    made = client.run("demo", ["sh", "-c", "echo 1; echo 2"])
    made.wait()
    assert str(made.logs()) == str(made.logs()) == "1\n2\n"
    assert list(made.logs(tail=1)) == ["2"]
    assert list(made.logs(since=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))) == []
    (line,) = made.logs(tail=1, timestamps=True)
    assert line.startswith("20")


def test_a_notebook_prints_lines_as_they_come(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.run("demo", ["sh", "-c", "echo 1; sleep 0.05; echo 2"]).logs(follow=True)._ipython_display_()
    assert capsys.readouterr().out == "1\n2\n"


def test_the_machine_is_listed(client: Client) -> None:
    gpus, (node,) = client.gpus(), client.nodes()
    assert (len(gpus), gpus[0].gpu.index, node.name, node.state) == (4, 0, "one", "ready")
    assert [name for image in client.images() for name in image.names] == ["localhost/demo:latest"]
    assert (list(client.volumes()), list(client.quotas()), list(client.claims())) == ([], [], [])
    assert client.status().version == "0.0.0"
    assert client.get("/v1/capacity")["items"][0]["offered"] == 4
    unused = client.usage(group_by=["gpu"])
    assert (list(unused.items), list(unused.notes)) == ([], ["no GPU was held yet"])


def test_events_are_read_and_followed(client: Client) -> None:
    made = client.run("demo", name="a")
    made.wait()
    assert {one.reason for one in made.events()} <= {one.reason for one in client.events()}
    assert made.explain().state == "succeeded"
    assert made.trace().entries


def test_a_port_leads_into_the_container(client: Client) -> None:
    made = client.run("demo", ["nc", "-l", "-p", "8888"])
    with made.port_forward(8888) as forwarded:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", forwarded.port), timeout=10) as one:
                one.sendall(b"ping")
                assert one.recv(10) == b"ping"
        assert repr(forwarded).startswith("<127.0.0.1:")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", forwarded.port), timeout=10)


def test_why_a_port_is_not_reached_is_reported_and_the_program_sees_an_end(client: Client) -> None:
    made = client.run("demo", ["sleep", "60"])
    made.wait("started")
    with made.port_forward(9) as forwarded:
        told: list[errors.FairleadError] = []
        forwarded._report = told.append
        with socket.create_connection(("127.0.0.1", forwarded.port), timeout=10) as one:
            assert one.recv(10) == b""
    assert [error.reason for error in told] == ["PortRefused"]


def test_closing_ends_what_another_thread_follows(client: Client) -> None:
    made = client.run("demo", ["sleep", "60"])
    raised: list[str] = []

    def follow() -> None:
        with pytest.raises(errors.Unavailable) as broken:
            made.wait()
        raised.append(broken.value.reason)

    thread = threading.Thread(target=follow)
    thread.start()
    made.wait("started")
    client.close()
    thread.join(10)
    assert raised == ["ClientClosed"]


def test_a_port_that_is_taken_is_named(client: Client) -> None:
    made = client.run("demo", ["sleep", "60"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(errors.Unavailable, match=f"port {number}"):
            made.port_forward(80, local=number)


def test_the_context_that_the_command_line_uses_is_used(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FAIRLEAD_URL", "FAIRLEAD_CONTEXT", "FAIRLEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FAIRLEAD_API_SOCKET", service.env["FAIRLEAD_URL"].removeprefix("http+unix://"))
    with Client() as local:
        assert local.status().version == "0.0.0"
    monkeypatch.setenv("FAIRLEAD_API_SOCKET", str(tmp_path / "none"))
    with Client() as gone, pytest.raises(errors.Unavailable, match="no service runs here"):
        gone.status()
    monkeypatch.setenv("FAIRLEAD_URL", service.env["FAIRLEAD_URL"])
    with Client() as named:
        assert named.status().version == "0.0.0"
    with pytest.raises(errors.NotFound, match='no context "lab"'):
        Client(context="lab")
