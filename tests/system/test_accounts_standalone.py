"""Accounts over TLS on a real machine: two people with keys, and streams, from `fairlead login` on."""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import Home, machine_of_tenancies

pytestmark = pytest.mark.podman


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service on TLS with a tenancy, an owner and a viewer; nothing of it is left afterwards."""
    with machine_of_tenancies(image, FAIRLEAD_API_LISTEN="127.0.0.1:0") as home:
        home.extra["HOME"] = str(home.folder)
        home.up()
        home.ok("tenancy", "create", "red", "--network", "none")
        for name, role in (("ann", "owner"), ("ben", "viewer")):
            home.ok("user", "create", name)
            home.ok("user", "grant", name, role, "-T", "red")
        yield home


def _door(machine: Home) -> tuple[str, str]:
    found = machine.ask("/v1/status")
    return found["address"], found["fingerprint"]


def _person(machine: Home, name: str, tmp_path: Path) -> Home:
    """A person's own machine: another HOME, and no socket to the service."""
    home = tmp_path / name
    home.mkdir()
    extra = {**machine.extra, "HOME": str(home), "FAIRLEAD_API_SOCKET": str(home / "no.sock")}
    person = dataclasses.replace(machine, extra=extra, process=None)
    key = machine.ok("key", "create", "--user", name).out
    address, fingerprint = _door(machine)
    done = person("login", address, "--fingerprint", fingerprint, stdin=key)
    assert (done.code, name in done.out, key.strip() in done.out + done.err) == (0, True, False), done
    return person


@pytest.mark.slow
@pytest.mark.smoke
def test_a_developer_runs_and_enters_containers_over_tls_and_a_viewer_only_looks(machine: Home, tmp_path: Path) -> None:
    ann, ben = (_person(machine, name, tmp_path) for name in ("ann", "ben"))
    done = ann.run("-g", "1", "--", "sh", "-c", "echo written; echo wrong >&2; exit 3")
    assert (done.code, done.out, "wrong" in done.err) == (3, "written\n", True), done
    ann.ok("run", "-d", "--name", "train", "-g", "1", machine.image, "--", "sh", "-c", "echo begun; exec sleep 1000")
    machine.until(lambda: "running" in ann("ps", "train").out or "running" in ann("ps").out, what="it runs")
    assert ann.ok("exec", "train", "--", "sh", "-c", "echo inside").out == "inside\n"
    assert ann("exec", "-i", "train", "--", "cat", stdin="fed\n").out == "fed\n"
    source = tmp_path / "file"
    source.write_text("copied")
    ann.ok("cp", str(source), "train:/tmp/file")
    assert ann.ok("exec", "train", "--", "cat", "/tmp/file").out == "copied"
    assert ben.ok("logs", "train").out == "begun\n"
    for words in (("stop", "train"), ("exec", "train", "--", "true"), ("run", machine.image, "--", "true")):
        refused = ben(*words)
        assert (refused.code, '"ben" may not do this' in refused.err) == (3, True), refused
    ann.ok("rm", "-f", "train")


def test_a_service_with_another_key_is_sent_nothing(machine: Home, tmp_path: Path) -> None:
    ann = _person(machine, "ann", tmp_path)
    file = tmp_path / "ann" / ".config" / "fairlead" / "contexts.json"
    found = json.loads(file.read_text())
    found["items"][0]["fingerprint"] = "sha256//" + "A" * 43 + "="
    file.write_text(json.dumps(found))
    for words in (("ps",), ("exec", "train", "--", "true")):
        refused = ann(*words)
        assert (refused.code, "is not the service that was pinned" in refused.err) == (3, True), refused


def test_the_fingerprint_is_what_other_programs_find_and_no_old_tls_is_spoken(machine: Home) -> None:
    address, fingerprint = _door(machine)
    host, _, port = address.removeprefix("https://").rpartition(":")
    if shutil.which("curl"):
        asked = ("curl", "-sk", "--pinnedpubkey", fingerprint, f"{address}/v1/self")
        answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert json.loads(answer)["reason"] == "KeyRequired"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port)), timeout=10) as plain, pytest.raises((ssl.SSLError, OSError)):
        old.wrap_socket(plain)


@pytest.mark.slow
def test_accounts_and_the_fingerprint_outlive_a_kill(machine: Home, tmp_path: Path) -> None:
    before = _door(machine)[1]
    machine.kill()
    machine.up()
    assert _door(machine)[1] == before
    _person(machine, "ann", tmp_path).ok("ps")
