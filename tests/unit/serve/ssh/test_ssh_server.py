"""The SSH door over the API in one process, asked by a client of SSH: whose key it is decides, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest

from fairlead import errors
from fairlead.serve import authentication, sockets
from fairlead.serve.accounts import sshkeys
from fairlead.serve.limits.gate import Gate
from fairlead.serve.ssh import carrying, hostkey, server
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application

KEYS = {name: asyncssh.generate_private_key("ssh-ed25519") for name in ("developer", "viewer", "stranger", "none")}


def public(name: str) -> str:
    return KEYS[name].export_public_key().decode().strip()


@dataclass
class Door:
    """The door, and who may connect to it."""

    lab: Lab
    port: int

    def connect(self, user: str, name: str) -> contextlib.AbstractAsyncContextManager[asyncssh.SSHClientConnection]:
        return asyncssh.connect(
            "127.0.0.1",
            self.port,
            username=user,
            client_keys=[KEYS[name]],
            known_hosts=None,
            config=None,
            agent_path=None,
        )


@contextlib.asynccontextmanager
async def served(world: World, tmp_path: Path, **limits: int) -> AsyncIterator[Door]:
    async with opened(world, tmp_path) as lab:
        for name in ("developer", "viewer", "stranger"):
            body = {"public_key": f"{public(name)} {name}'s laptop"}
            added = await lab.ask(name, "POST", "/v1/sshkeys", json=body)
            assert added.status_code == 201, added.text
        inner, gate = application(lab.services), Gate(lab.policy)
        app = authentication.create_ssh_app(inner, lab.accounts, gate=gate, refusals=lab.refusals)
        listener = sockets.listen_at("127.0.0.1:0")
        serving = server.serve(
            app, listener, hostkey.ensure(tmp_path), lab.accounts.ssh_keys, gate=gate, limits=server.Limits(**limits)
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(serving)
            yield Door(lab, listener.getsockname()[1])
            task.cancel()


async def _train(door: Door) -> None:
    asked = {"tenancy": "red", "args": ["sleep", "60"]}
    assert (await door.lab.run("developer", "train", **asked)).status_code == 201
    await door.lab.ask("developer", "GET", "/v1/containers/train/wait", params={"state": "started"})


async def test_a_command_runs_in_the_container_of_the_user_name(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        namespace = door.lab.namespaces["red"]
        for user in ("train", "red/train", f"{namespace}/train", f"{namespace}+train", "red+train"):
            async with door.connect(user, "developer") as connection:
                done = await connection.run("echo hello; exit 7", encoding=None)
                assert (done.exit_status, done.stdout, done.stderr) == (7, b"hello\n", b"")
                fed = await connection.run("cat", input=b"fed", encoding=None)
                assert (fed.exit_status, fed.stdout) == (0, b"fed")
        rows = (await door.lab.ask("root", "GET", "/v1/audit")).json()["items"]
        entered = [one for one in rows if one["action"] == "container.enter"]
        assert {(one["account"], one["method"], one["peer"]) for one in entered} == {("developer", "SSH", "127.0.0.1")}
        assert len(entered) == 10


async def test_a_terminal_has_its_size_and_learns_of_another(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        async with door.connect("train", "developer") as connection:
            process = await connection.create_process("sh", term_type="xterm", term_size=(90, 40), encoding=None)
            process.stdin.write(b"stty size\n")
            assert b"40 90" in await process.stdout.readuntil(b"40 90")
            process.change_terminal_size(132, 50)
            await asyncio.sleep(0)
            process.stdin.write(b"stty size\nexit\n")
            assert b"50 132" in await process.stdout.read()


async def test_sftp_is_the_container_s_and_never_the_machine_s(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        async with door.connect("train", "developer") as connection:
            process = await connection.create_process(subsystem="sftp", encoding=None)
            assert b"simulated" in await process.stderr.read(), "the fake engine has no files, and says so"
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.create_process(subsystem="shell", encoding=None)


async def test_who_may_not_enter_gets_the_api_s_own_answer(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        namespace = door.lab.namespaces["red"]
        for name, user, words in (
            ("viewer", "train", b"may not do this"),
            ("stranger", "train", b"train"),
            ("stranger", f"{namespace}/train", b""),
            ("developer", "none", b"none"),
            ("developer", "a/b/c", b"names no container"),
            ("developer", "train/exec", b"exec"),
            ("developer", "train:signal", b"names no container"),
            ("developer", "x" * 254, b"names no container"),
            ("developer", "blue+train", b"not found"),
            ("stranger", "red+train", b""),
        ):
            async with door.connect(user, name) as connection:
                done = await connection.run("echo in", encoding=None)
                assert (done.exit_status in {2, 3}, done.stdout) == (True, b""), (name, user)
                said = done.stderr
                assert isinstance(said, bytes)
                assert said.startswith(b"fairlead: "), (name, user)
                assert words in said, said


async def test_a_key_of_nobody_is_refused_whatever_the_user_name(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        for user in ("train", "none", "root", "x" * 200):
            with pytest.raises(asyncssh.PermissionDenied):
                async with door.connect(user, "none"):
                    pass


async def test_a_removed_key_opens_nothing_more_over_its_connection(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        async with door.connect("train", "developer") as connection:
            assert (await connection.run("echo in", encoding=None)).stdout == b"in\n"
            listed = (await door.lab.ask("developer", "GET", "/v1/sshkeys")).json()["items"]
            assert [one["note"] for one in listed] == ["developer's laptop"]
            assert listed[0]["last_used_at"] is not None
            gone = await door.lab.ask("developer", "DELETE", f"/v1/sshkeys/{listed[0]['id']}")
            assert gone.status_code == 200
            over = await connection.run("echo in", encoding=None)
            assert (over.exit_status, over.stdout) == (2, b"")
        with pytest.raises(asyncssh.PermissionDenied):
            async with door.connect("train", "developer"):
                pass


async def test_forwarding_leads_to_the_container_alone(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as door:
        await _train(door)
        async with door.connect("train", "developer") as connection:
            for host, port in (("192.168.255.1", 22), ("example.org", 80), ("0.0.0.0", 80), ("localhost", 0)):
                with pytest.raises(asyncssh.ChannelOpenError):
                    await connection.open_connection(host, port)
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.open_unix_connection("/run/fairlead/api.sock")
            with pytest.raises(asyncssh.ChannelListenError):
                await connection.forward_remote_port("", 0, "localhost", 22)
            reader, writer = await connection.open_connection("localhost", 81)
            assert await reader.read() == b"", "nothing listens there"
            writer.close()


async def test_connections_and_channels_are_bounded(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path, per_address=2, channels=1) as door:
        await _train(door)
        async with door.connect("train", "developer") as first, door.connect("train", "developer") as second:
            with pytest.raises((OSError, asyncssh.Error)):
                async with door.connect("train", "developer"):
                    pass
            async with first.create_process("cat", encoding=None):
                refused = await first.run("echo in", encoding=None)
                said = refused.stderr
                assert isinstance(said, bytes)
                assert (refused.exit_status, b"too many sessions" in said) == (1, True)
                assert (await second.run("echo in", encoding=None)).stdout == b"in\n"


async def test_an_ssh_key_is_one_account_s_and_outlives_no_key_that_added_it(world: World, tmp_path: Path) -> None:
    async with opened(world, tmp_path) as lab:
        body = {"public_key": public("developer")}
        assert (await lab.ask("developer", "POST", "/v1/sshkeys", json=body)).status_code == 201
        taken = await lab.ask("stranger", "POST", "/v1/sshkeys", json=body)
        assert (taken.status_code, taken.json()["reason"]) == (409, "SSHKeyTaken")
        others = {"public_key": public("viewer"), "account": "viewer"}
        assert (await lab.ask("developer", "POST", "/v1/sshkeys", json=others)).status_code == 403
        id_ = (await lab.ask("developer", "GET", "/v1/sshkeys")).json()["items"][0]["id"]
        for name, status in (("stranger", 404), ("root", 200)):
            assert (await lab.ask(name, "DELETE", f"/v1/sshkeys/{id_}")).status_code == status
        lab.keys["developer"] = await lab.key("developer", lifetime_s=600.0)
        ends = (await lab.ask("developer", "POST", "/v1/sshkeys", json=body)).json()["expires_at"]
        assert ends is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 !!!",
        "ssh-dss AAAAB3NzaC1kc3M=",
        'command="sh" ' + public("none"),
        public("none") + "\n" + public("viewer"),
        public("none").replace("ssh-ed25519", "ssh-rsa"),
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "ssh-ed25519 " + "A" * 10_000,
        public("none") + "\0",
    ],
    # Keys are made anew by each worker: by their texts, no two would have the same tests.
    ids=range(11),
)
def test_what_is_no_public_key_is_refused(line: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        sshkeys.parse(line)
    assert (refused.value.reason, bool(refused.value.hint)) == ("SSHKeyInvalid", True)


def test_fingerprint_and_comment_are_as_openssh_has_them() -> None:
    found = sshkeys.parse(public("none") + " ann's laptop\n")
    assert (found.fingerprint, found.comment) == (KEYS["none"].get_fingerprint(), "ann's laptop")


def test_the_host_key_stays_and_is_refused_once_others_may_read_it(tmp_path: Path) -> None:
    first = hostkey.ensure(tmp_path)
    file = tmp_path / hostkey.NAME
    assert (file.stat().st_mode & 0o777, hostkey.ensure(tmp_path)) == (0o600, first)
    file.chmod(0o640)
    with pytest.raises(errors.Denied, match="others may read"):
        hostkey.ensure(tmp_path)
    file.chmod(0o600)
    file.write_bytes(b"nonsense")
    with pytest.raises(errors.ProtocolError):
        hostkey.ensure(tmp_path)


def test_few_variables_of_a_client_are_passed_on() -> None:
    given = (("LANG", "C.UTF-8"), ("LC_ALL", "C"), ("LD_PRELOAD", "/x"), ("PATH", "/x"), ("LC_X", "a\nb"))
    assert carrying.variables(given) == (("env", "LANG=C.UTF-8"), ("env", "LC_ALL=C"))
