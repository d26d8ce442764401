"""The SSH door on a real machine: OpenSSH's own programs enter, copy and forward, as accounts and as nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from home import Home, machine_of_tenancies

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's client (tests/system/setup.sh)"),
]
_SERVER = "while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\ninside\\n' | nc -l -p 8000 -s 127.0.0.1; done & "


@dataclass(frozen=True)
class Person:
    """Somebody with a key and the block of `ssh-config` that the service printed."""

    config: Path

    def _argv(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.config), "-o", "BatchMode=yes", *words]

    def __call__(
        self, *words: str, program: str = "ssh", stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one of OpenSSH's programs."""
        return subprocess.run(
            self._argv(program, *words), input=stdin or b"", capture_output=True, timeout=90, check=False
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `ssh`."""
        return subprocess.Popen(self._argv("ssh", *words), stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service with two tenancies, an owner of each and a viewer of the first, and a container of the first."""
    with machine_of_tenancies(image, FAIRLEAD_API_LISTEN="127.0.0.1:0", FAIRLEAD_SSH_LISTEN="0") as home:
        home.extra["HOME"] = str(home.folder)
        home.up()
        for tenancy in ("red", "blue"):
            home.ok("tenancy", "create", tenancy, "--network", "none")
        for name, role, tenancy in (("ann", "owner", "red"), ("ben", "viewer", "red"), ("eve", "owner", "blue")):
            home.ok("user", "create", name)
            home.ok("user", "grant", name, role, "-T", tenancy)
        script = f"echo 0123456789 >/tmp/file; {_SERVER} exec sleep 1000"
        home.ok("run", "-d", "-T", "red", "--name", "train", "-g", "1", image, "--", "sh", "-c", script)
        home.until(lambda: "running" in home("ps", "-T", "red").out, what="it runs")
        yield home


def _person(machine: Home, name: str, folder: Path, *, is_added: bool = True) -> Person:
    folder.mkdir(exist_ok=True)
    key = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}'s", "-f", str(key)], check=True)
    if is_added:
        added = machine.ok("ssh-key", "add", "--user", name, f"{key}.pub")
        assert name in added.out
    config, known = folder / "config", folder / "known"
    known.write_text(machine.ok("ssh-config", "--known-hosts").out)
    block = machine.ok("ssh-config", "--identity", str(key)).out
    config.write_text(f"{block}    UserKnownHostsFile {known}\n")
    return Person(config)


def _inside(machine: Home, name: str) -> str:
    """Return the container's user name: its tenancy's namespace before it."""
    found = machine.ask("/v1/tenancies/red")
    return f"{found['namespace']}+{name}@fairlead"


@pytest.mark.slow
def test_ssh_runs_commands_and_a_terminal_in_the_container(machine: Home, tmp_path: Path) -> None:
    ann, train = _person(machine, "ann", tmp_path / "ann"), _inside(machine, "train")
    done = ann(train, "echo out; echo err >&2; cat; exit 7", stdin=b"fed")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\nfed", b"err\n"), done
    assert ann("train@fairlead", "cat /tmp/file").stdout == b"0123456789\n", "one tenancy: its name is enough"
    listed = ann(train, "ls /proc | grep -c '^[0-9]'; hostname; ls /dev")
    assert b"nvidia0" in listed.stdout
    assert socket.gethostname().encode() not in listed.stdout, "it is the container's own namespaces"
    sized = ann("-tt", train, "stty size; echo $TERM; exit 5")
    assert (sized.returncode, len(sized.stdout.split()) >= 2) == (5, True), sized
    assert machine.ok("audit").out.count("container.enter") >= 4


@pytest.mark.slow
def test_sftp_and_scp_stay_in_the_container(machine: Home, tmp_path: Path) -> None:
    ann, train = _person(machine, "ann", tmp_path / "ann"), _inside(machine, "train")
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3 << 20))
    assert ann(str(source), f"{train}:/tmp/copy", program="scp").returncode == 0
    assert ann(f"{train}:/tmp/copy", str(back), program="scp").returncode == 0
    assert back.read_bytes() == source.read_bytes()
    ann(train, "ln -sf /proc/1/root/etc /tmp/out; mkfifo /tmp/pipe")
    batch = b"-ls -l /\n-get /proc/self/exe x\n-get /dev/null x\n-get /tmp/pipe x\n-get /tmp/out/hostname x\n"
    done = ann(
        "-b",
        "-",
        train,
        program="sftp",
        stdin=batch + b"mkdir /tmp/d\n-chmod 4777 /proc/self/exe\nrename /tmp/d /tmp/e\n",
    )
    assert done.returncode == 0, done
    assert b"bin" in done.stdout, done
    assert not (Path.cwd() / "x").exists()
    mode = Path(sys.executable).resolve().stat().st_mode & 0o7777
    assert not mode & 0o4000, oct(mode)
    assert ann(train, "ls -d /tmp/e; id -u; stat -c %u /tmp/copy").stdout.split() == [b"/tmp/e", b"0", b"0"]
    left = subprocess.run(["pgrep", "-fc", "sftpserver.p[y]"], capture_output=True, text=True, check=False)
    assert left.stdout.strip() == "0"


@pytest.mark.slow
def test_forwarding_ends_at_the_container_s_loopback(machine: Home, tmp_path: Path) -> None:
    ann, train = _person(machine, "ann", tmp_path / "ann"), _inside(machine, "train")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    running = ann.start("-N", "-L", f"{port}:localhost:8000", train)
    try:
        machine.until(lambda: b"inside" in _answer(port), what="the container's server answers", timeout_s=90)
    finally:
        running.terminate()
        running.wait(10)
    assert ann("-W", "192.168.255.1:22", train).returncode != 0
    remote = ann("-o", "ExitOnForwardFailure=yes", "-R", "9009:localhost:22", train, "true")
    assert remote.returncode == 255, "nothing of the service's machine listens for a client"


def _answer(port: int) -> bytes:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
        one.settimeout(5)
        one.sendall(b"GET / HTTP/1.0\r\n\r\n")
        found = b""
        while data := one.recv(1000):
            found += data
        return found
    return b""


@pytest.mark.slow
def test_a_key_opens_only_its_account_s_containers(machine: Home, tmp_path: Path) -> None:
    train = _inside(machine, "train")
    ben, eve = _person(machine, "ben", tmp_path / "ben"), _person(machine, "eve", tmp_path / "eve")
    refused = ben(train, "true")
    assert (refused.returncode, b"may not do this" in refused.stderr) == (3, True), refused
    for words in ((train, "true"), ("train@fairlead", "true"), ("none@fairlead", "true"), ("../../x@fairlead", "true")):
        stranger = eve(*words)
        assert (stranger.returncode in {2, 3}, stranger.stdout) == (True, b""), stranger
    assert eve(train, program="sftp", stdin=b"ls /\n").returncode != 0
    ann = _person(machine, "ann", tmp_path / "ann")
    listed = machine.ok("ssh-key", "list", "--user", "ann", "-o", "json").out
    assert "SHA256:" in listed
    master = ann.start("-M", "-N", "-S", str(tmp_path / "master"), train)
    try:
        machine.until((tmp_path / "master").exists, what="the connection is there")
        assert ann("-S", str(tmp_path / "master"), train, "echo on").stdout == b"on\n"
        last = machine.ok("ssh-key", "list", "--user", "ann", "-o", "name").out.split()[-1]
        machine.ok("ssh-key", "remove", last)
        over = ann("-S", str(tmp_path / "master"), train, "echo on")
        assert (over.returncode, over.stdout) == (2, b""), "a removed key opens nothing more, over a connection either"
    finally:
        master.terminate()
        master.wait(10)
    assert ann(train, "true").returncode == 255


@pytest.mark.slow
def test_who_has_no_key_learns_nothing(machine: Home, tmp_path: Path) -> None:
    nobody = _person(machine, "nobody", tmp_path / "nobody", is_added=False)
    answers = {nobody(f"{user}@fairlead", "true").stderr.split(b": ", 1)[1] for user in ("train", "none", "root")}
    assert answers == {b"Permission denied (publickey).\r\n"}
    port = next(line.split()[1] for line in nobody.config.read_text().splitlines() if line.strip().startswith("Port"))
    with socket.create_connection(("127.0.0.1", int(port)), 5) as one:
        assert one.recv(100).startswith(b"SSH-2.0-Fairlead\r\n")
    held = [socket.create_connection(("127.0.0.1", int(port)), 5) for _ in range(20)]
    time.sleep(0.5)
    for one in held:
        one.settimeout(2)
    cut = sum(_is_cut(one) for one in held)
    for one in held:
        one.close()
    assert cut >= 4, "one address holds sixteen"


def _is_cut(one: socket.socket) -> bool:
    try:
        while data := one.recv(4096):
            if len(data) < 4096:
                one.settimeout(0.3)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True
