"""The SSH door on a real machine: OpenSSH's own programs enter, copy and forward, as accounts and as nobody."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest
from home import Home, machine_of_tenancies

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's client (tests/system/setup.sh)"),
]
_SERVER = """
echo 0123456789 >/tmp/file; mkdir /tmp/www; echo inside >/tmp/www/index.html
exec httpd -f -p 127.0.0.1:8000 -h /tmp/www
"""
_OTHER = "echo theirs >/tmp/secret; exec httpd -f -p 8001 -h /tmp"
_TRAIN = "red+train@fairlead"


@dataclass(frozen=True)
class Person:
    """Somebody with a key and the block of `ssh-config` that the service printed."""

    config: Path

    def argv(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.config), "-o", "BatchMode=yes", *words]

    def __call__(
        self, *words: str, program: str = "ssh", stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one of OpenSSH's programs."""
        return subprocess.run(
            self.argv(program, *words), input=stdin or b"", capture_output=True, timeout=90, check=False
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `ssh`."""
        return subprocess.Popen(self.argv("ssh", *words), stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def tenancies(image: str) -> Iterator[Home]:
    """A service with two tenancies, an owner of each and a viewer of the first."""
    with machine_of_tenancies(image, FAIRLEAD_API_LISTEN="127.0.0.1:0", FAIRLEAD_SSH_LISTEN="0") as home:
        home.extra["HOME"] = str(home.folder)
        home.up()
        for tenancy in ("red", "blue"):
            home.ok("tenancy", "create", tenancy, "--network", "none")
        for name, role, tenancy in (("ann", "owner", "red"), ("ben", "viewer", "red"), ("eve", "owner", "blue")):
            home.ok("user", "create", name)
            home.ok("user", "grant", name, role, "-T", tenancy)
        yield home


@pytest.fixture
def machine(tenancies: Home) -> Home:
    """The service with a container of each tenancy."""
    for tenancy, name, script in (("red", "train", _SERVER), ("blue", "other", _OTHER)):
        tenancies.ok("run", "-d", "-T", tenancy, "--name", name, "-g", "1", tenancies.image, "--", "sh", "-c", script)
    for name in ("train", "other"):
        tenancies.until_state(name, "running")
    return tenancies


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


def _namespace(machine: Home) -> str:
    return str(machine.ask("/v1/tenancies/red")["namespace"])


class Terminal:
    """A session of `ssh -t` on a terminal of its own."""

    def __init__(self, argv: list[str], rows: int, columns: int) -> None:
        self._here, there = os.openpty()
        self.resize(rows, columns)
        self._seen = b""
        self.process = subprocess.Popen(argv, stdin=there, stdout=there, stderr=there, start_new_session=True)
        os.close(there)

    def resize(self, rows: int, columns: int) -> None:
        """Change its size; ssh is told, which as nobody's foreground process would not hear of it."""
        fcntl.ioctl(self._here, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def until(self, word: str, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while word.encode() not in self._seen:
            ready, _, _ = select.select([self._here], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{word} was not seen: {self._seen!r}"
            self._seen += os.read(self._here, 4096)
        self._seen = self._seen.split(word.encode(), 1)[1]


@pytest.mark.slow
def test_ssh_runs_commands_in_the_container(machine: Home, tmp_path: Path) -> None:
    ann = _person(machine, "ann", tmp_path / "ann")
    done = ann(_TRAIN, "echo out; echo err >&2; cat; exit 7", stdin=b"fed")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\nfed", b"err\n"), done
    for user in ("train", "red+train", f"{_namespace(machine)}+train"):
        assert ann(f"{user}@fairlead", "cat /tmp/file").stdout == b"0123456789\n", user
    listed = ann(_TRAIN, "hostname; ls /dev; cat /proc/1/comm; kill -TERM $$")
    words = listed.stdout.split()
    assert (words[0], words[-1], b"nvidia0" in words) == (b"train", b"httpd", True), "the container's own namespaces"
    assert listed.returncode == 128 + signal.SIGTERM
    assert machine.ok("audit").out.count("container.enter") >= 5


@pytest.mark.slow
def test_a_terminal_has_its_size_and_its_keys(machine: Home, tmp_path: Path) -> None:
    ann = _person(machine, "ann", tmp_path / "ann")
    terminal = Terminal(ann.argv("ssh", "-t", _TRAIN), 33, 77)
    terminal.until("# ")
    terminal.type("stty size; echo $TERM\n")
    terminal.until("33 77")
    terminal.resize(40, 100)
    terminal.type("until stty size | grep '40 100'; do sleep 0.1; done\n")
    terminal.until("\n40 100")
    terminal.type("echo be''gun; sleep 1000; echo never''theless\n")
    terminal.until("begun")
    terminal.type("\x03")
    terminal.until("# ")
    terminal.type("exit 9\n")
    assert terminal.process.wait(20) == 9


@pytest.mark.slow
def test_sftp_and_scp_stay_in_the_container(machine: Home, tmp_path: Path) -> None:
    ann = _person(machine, "ann", tmp_path / "ann")
    source, back, here = tmp_path / "source", tmp_path / "back", tmp_path / "here"
    source.write_bytes(os.urandom(3 << 20))
    here.mkdir()
    assert ann(str(source), f"{_TRAIN}:/tmp/copy", program="scp").returncode == 0
    assert ann(f"{_TRAIN}:/tmp/copy", str(back), program="scp").returncode == 0
    assert back.read_bytes() == source.read_bytes()
    theirs = tmp_path / "machine's own"  # by its path, and by paths of processes that could lead out
    theirs.write_text("the machine's")
    ann(_TRAIN, f"ln -s /proc/1/root/etc /tmp/out; ln -s /proc/self/root{tmp_path} /tmp/up; mkfifo /tmp/pipe")
    tries = [
        *(
            f"{way}{file}"
            for way in ("", "/../../..", "/proc/1/root", "/proc/self/cwd")
            for file in (theirs, "/etc/shadow")
        ),
        *("/proc/self/exe", "/dev/null", "/dev/zero", "/dev/nvidia0", "/tmp/pipe", "/tmp/out/passwd", "/tmp/up/source"),
    ]
    batch = [f'-get "{path}" {here}/{number}' for number, path in enumerate(tries)]
    batch += [
        f'-put {source} "{tmp_path}/written"',
        "-chmod 4777 /proc/self/exe",
        "mkdir /tmp/d",
        "rename /tmp/d /tmp/e",
    ]
    batch += [f"get /etc/hostname {here}/hostname", "-ls /proc", "ls -l /"]
    done = ann("-b", "-", _TRAIN, program="sftp", stdin="\n".join(batch).encode() + b"\n")
    assert done.returncode == 0, done
    assert [one.name for one in here.iterdir()] == ["hostname"], done
    assert (here / "hostname").read_text().strip() == "train"
    assert not (tmp_path / "written").exists()
    assert not Path(sys.executable).resolve().stat().st_mode & 0o4000
    assert ann(_TRAIN, "ls -d /tmp/e; stat -c %u /tmp/copy").stdout.split() == [b"/tmp/e", b"0"]
    machine.until(lambda: not _is_serving_files(machine), what="nothing of SFTP is left")


def _is_serving_files(machine: Home) -> bool:
    """Return whether this service's program that serves files runs still."""
    assert machine.process is not None
    found = subprocess.run(
        ["pgrep", "-P", str(machine.process.pid), "-f", "sftpserver.py"], capture_output=True, check=False
    )
    return bool(found.stdout)


@pytest.mark.slow
def test_forwarding_ends_at_the_container_s_loopback(machine: Home, tmp_path: Path) -> None:
    ann = _person(machine, "ann", tmp_path / "ann")
    door = int(_setting(ann, "Port"))
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        port, hosts = first.getsockname()[1], second.getsockname()[1]
    ways = (f"{port}:localhost:8000", f"{hosts}:127.0.0.1:{door}")
    running = ann.start("-N", *(word for way in ways for word in ("-L", way)), _TRAIN)
    try:
        machine.until(lambda: b"inside" in _answer(port), what="the container's server answers")
        assert _answer(hosts) == b"", "the loopback is the container's: the door listens on the machine's"
    finally:
        running.terminate()
        running.wait(10)
    for where in (
        "192.168.255.1:22",
        "0.0.0.0:22",
        "127.0.0.2:22",
        "169.254.169.254:80",
        "[::ffff:127.0.0.1]:22",
        f"{socket.gethostname()}:22",
    ):
        refused = ann("-W", where, _TRAIN)
        assert (refused.returncode, b"prohibited" in refused.stderr) == (255, True), refused
    # Another tenancy's container, by each of the addresses that it has.
    assert b"theirs" not in ann("-W", "localhost:8001", _TRAIN, stdin=b"GET /secret HTTP/1.0\r\n\r\n").stdout
    for what in (("-R", "9009:localhost:22"), ("-R", f"{tmp_path}/out:localhost:22")):
        remote = ann("-o", "ExitOnForwardFailure=yes", *what, _TRAIN, "true")
        assert remote.returncode == 255, "nothing of the service's machine listens for a client"
    inner = ann.start("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{port}:{machine.folder}/run/api.sock", _TRAIN)
    try:
        machine.until(lambda: _answer(port) == b"" and _is_open(port), what="ssh listens")
        assert _answer(port) == b"", "no socket of the machine answers"
    finally:
        inner.terminate()
        inner.wait(10)
    assert b"none" in ann("-A", _TRAIN, "echo ${SSH_AUTH_SOCK:-none}").stdout


def _setting(person: Person, name: str) -> str:
    return next(line.split()[1] for line in person.config.read_text().splitlines() if line.strip().startswith(name))


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def _answer(port: int) -> bytes:
    found = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
        one.settimeout(5)
        one.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while data := one.recv(1000):
            found += data
    return found


@pytest.mark.slow
def test_a_key_opens_only_its_account_s_containers(machine: Home, tmp_path: Path) -> None:
    ben, eve = _person(machine, "ben", tmp_path / "ben"), _person(machine, "eve", tmp_path / "eve")
    refused = ben(_TRAIN, "true")
    assert (refused.returncode, b"may not do this" in refused.stderr) == (3, True), refused
    for user in (
        "red+train",
        f"{_namespace(machine)}+train",
        "train",
        "none",
        "../../x",
        "blue+../other",
        "a+b+c",
        "+",
    ):
        stranger = eve(f"{user}@fairlead", "echo in")
        assert (stranger.returncode in {2, 3}, stranger.stdout) == (True, b""), stranger
    assert b"theirs" in eve("other@fairlead", "cat /tmp/secret").stdout
    assert eve(_TRAIN, program="sftp", stdin=b"ls /\n").returncode != 0
    ann = _person(machine, "ann", tmp_path / "ann")
    listed = machine.ok("ssh-key", "list", "--user", "ann", "-o", "json").out
    assert "SHA256:" in listed
    master = ann.start("-M", "-N", "-S", str(tmp_path / "master"), _TRAIN)
    try:
        machine.until((tmp_path / "master").exists, what="the connection is there")
        assert ann("-S", str(tmp_path / "master"), _TRAIN, "echo on").stdout == b"on\n"
        last = machine.ok("ssh-key", "list", "--user", "ann", "-o", "name").out.split()[-1]
        machine.ok("ssh-key", "remove", last)
        over = ann("-S", str(tmp_path / "master"), _TRAIN, "echo on")
        assert (over.returncode, over.stdout) == (2, b""), "a removed key opens nothing more, over a connection either"
    finally:
        master.terminate()
        master.wait(10)
    assert ann(_TRAIN, "true").returncode == 255


@pytest.mark.slow
def test_who_has_no_key_learns_nothing(machine: Home, tmp_path: Path) -> None:
    nobody = _person(machine, "nobody", tmp_path / "nobody", is_added=False)
    answers = {
        nobody(f"{user}@fairlead", "true").stderr.split(b": ", 1)[1] for user in ("train", "none", "root", "x" * 500)
    }
    assert answers == {b"Permission denied (publickey).\r\n"}
    port = _setting(nobody, "Port")
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


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False], ids=["ann", "nobody"])
async def test_names_that_openssh_would_not_send_are_refused_without_a_word(
    machine: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    person = _person(machine, "ann", tmp_path / "one", is_added=is_known)
    before, port = len(machine.log()), int(_setting(person, "Port"))
    key = asyncssh.read_private_key(str(tmp_path / "one/id"))
    # The service is another process: what is taken away here is the client's own look at the name.
    monkeypatch.setattr("asyncssh.connection.saslprep", str)
    for user in ("train\0", "red+train\0x", "tr\nain", "\x1b[2Jtrain", "\u202etrain", "x" * 2000, "x" * 5_000_000):
        with pytest.raises(asyncssh.DisconnectError):
            async with asyncssh.connect(
                "127.0.0.1", port, username=user, client_keys=[key], known_hosts=None, config=None, agent_path=None
            ):
                pass
    for data in (b"GET / HTTP/1.0\r\n\r\n", b"SSH-2.0-x\r\n" + b"\xff" * 100_000, b"A" * 5_000_000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
            one.sendall(data)
            assert b"train" not in one.recv(4096)
    assert machine.log()[before:] == "", "nor is the log theirs to fill"


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
