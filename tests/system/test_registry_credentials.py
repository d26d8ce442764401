"""Tenancies' own registry credentials at a real registry pull for their tenancy and nobody else, and are nowhere.

The registry is Debian's docker-registry on loopback, with one user; `tests/system/setup.sh` brings it.
"""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import Home, machine_of_tenancies

PROGRAM = Path.home() / ".cache/fairlead/debian/registry/usr/bin/docker-registry"
PASSWORD = "rosebud-7f3a"
HASHED = "$2b$04$ThNDPf278rca9hIpEhjzfuJFZhOeqiPCYKT7pHYw7Lsu4XllwNxJm"
"""bcrypt of it: registries take no other."""
_CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: {root}/htpasswd}}}}
"""

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.exists(), reason="needs Debian's docker-registry: tests/system/setup.sh"),
    pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables"),
]


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry's address; podman is allowed to speak to it without TLS."""
    root = tmp_path_factory.mktemp("registry")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    (root / "htpasswd").write_text(f"red:{HASHED}\n")
    (root / "config.yml").write_text(_CONFIG.format(root=root, port=port))
    allowed = Path(f"/etc/containers/registries.conf.d/fairlead-test-{port}.conf")
    allowed.parent.mkdir(parents=True, exist_ok=True)
    allowed.write_text(f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n')
    process = subprocess.Popen(
        (PROGRAM, "serve", root / "config.yml"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while not _answers(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
        allowed.unlink()


@pytest.fixture(scope="module")
def machine(image: str, registry: str) -> Iterator[Home]:
    """A service with two tenancies, and an image that only the registry has."""
    private = f"{registry}/red/train:1"
    for argv in (
        ("tag", image, private),
        ("push", "--quiet", f"--creds=red:{PASSWORD}", "--tls-verify=false", private),
        ("rmi", private),
    ):
        subprocess.run(("podman", "--runtime", "runc", *argv), check=True, capture_output=True)
    try:
        with machine_of_tenancies(image) as home:
            home.up()
            for name in ("red", "blue"):
                home.ok("tenancy", "create", name)
            yield home
    finally:
        subprocess.run(("podman", "rmi", "-f", private), check=False, capture_output=True)


def _login(home: Home, tenancy: str, registry: str, password: str) -> None:
    done = home("tenancy", "login", tenancy, registry, "-u", "red", "--password-stdin", stdin=f"{password}\n")
    assert done.code == 0, done.err
    assert registry in home.ok("tenancy", "show", tenancy).out


def _run(home: Home, image: str, *options: str) -> tuple[int, str]:
    done = home("run", "--rm", *options, image, "--", "echo", "trained", timeout_s=120)
    return done.code, done.out or done.err


def test_a_private_image_is_its_tenancys_alone_and_the_password_is_nowhere(machine: Home, registry: str) -> None:
    private = f"{registry}/red/train:1"
    code, said = _run(machine, private, "-T", "red")
    assert code != 0, said  # nobody has a login yet

    _login(machine, "red", registry, PASSWORD)
    assert _run(machine, private, "-T", "red") == (0, "trained\n")

    # It is on the machine now: its name and its id are no key to it.
    identity = machine.podman("image", "inspect", "--format={{.Id}}", private).strip()
    for name in (private, identity):
        for options in (("-T", "blue"), ()):
            code, said = _run(machine, name, *options)
            assert code != 0, said
            assert "trained" not in said
    _login(machine, "blue", registry, "guess")
    assert _run(machine, private, "-T", "blue")[0] != 0
    _login(machine, "blue", registry, PASSWORD)
    assert _run(machine, private, "-T", "blue") == (0, "trained\n")

    machine.ok("tenancy", "logout", "blue", registry)
    uid = machine.ask("/v1/tenancies/red")["uid"]
    authfile = machine.state / "registries" / f"{uid}.json"
    assert authfile.stat().st_mode & 0o777 == 0o600
    secrets = (PASSWORD.encode(), base64.b64encode(f"red:{PASSWORD}".encode()))
    holding = [
        path
        for path in machine.folder.rglob("*")
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets)
    ]
    assert holding == [authfile]
    assert PASSWORD not in machine("--show-request", "tenancy", "show", "red").err

    machine.ok("tenancy", "delete", "red")
    assert not authfile.exists()
