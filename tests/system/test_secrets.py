"""Secrets on one machine as a user has them: in the container and nowhere else, through updates and restarts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(300)]
VALUE = "rosebud-7f3a-x"
_PEM = f"-----BEGIN KEY-----\n{VALUE}\n-----END KEY-----\n"
_MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: {image}
    command: [sh, -c, 'echo "$A $DB_password"; cat /etc/db/tls.pem; ls /etc/db; sleep 1000']
    env: [{{name: A, valueFrom: {{secretKeyRef: {{name: db, key: password}}}}}}]
    envFrom: [{{prefix: DB_, secretRef: {{name: db}}}}]
    volumeMounts: [{{name: v, mountPath: /etc/db}}]
  volumes:
  - {{name: v, secret: {{secretName: cert, items: [{{key: value, path: tls.pem}}]}}}}
"""


def _command_lines() -> bytes:
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes()
        except OSError:
            continue
    return found


def _grep(folder: Path) -> str:
    """Return the files of a disk that have the value; what is mounted in memory is left out."""
    find = ("find", folder, "-xdev", "-type", "f", "-exec", "grep", "-l", VALUE, "{}", "+")
    return subprocess.run(find, capture_output=True, text=True, check=False).stdout


def test_a_secret_is_in_its_container_and_nowhere_else(service: Home, tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(_PEM)
    made = service("secrets", "create", "token", "-", stdin=VALUE + "\n")
    assert (made.code, made.out) == (0, "token\n"), made.err
    service.ok("secrets", "create", "pem", str(tmp_path / "pem"))
    script = 'echo "$TOKEN"; cat /run/secrets/pem; stat -c "%a %u" /run/secrets/pem; id -u; sleep 1000'
    given = ("--secret", "token=TOKEN", "--secret", "pem", "-u", "1000")
    service.ok("run", "-d", "--name", "one", *given, service.image, "--", "sh", "-c", script)
    service.until_state("one", "running")
    service.until(lambda: service.ok("logs", "one").out.endswith("1000\n1000\n"), what="it wrote all")
    assert service.ok("logs", "one").out == f"{VALUE}\n{_PEM}400 1000\n1000\n"
    assert service.ok("exec", "one", "--", "sh", "-c", 'echo "$TOKEN"').out == f"{VALUE}\n"
    assert service("exec", "one", "--", "sh", "-c", "echo x > /run/secrets/pem").code != 0

    said = [
        service.ok(*words).out
        for words in (
            ("inspect", "one"),
            ("ps", "-o", "json"),
            ("trace", "one", "-o", "json"),
            ("events", "-o", "json"),
            ("explain", "one"),
            ("secrets", "list", "-o", "json"),
            ("secrets", "show", "token", "pem"),
        )
    ]
    assert not [text for text in said if VALUE in text]
    assert VALUE not in service.log()
    assert VALUE.encode() not in _command_lines()
    assert _grep(service.folder) == ""

    service.ok("rm", "-f", "one")
    service.until(lambda: not list(service.state.glob("pods/*")), what="its files are gone")


def test_a_manifests_container_waits_for_its_secrets_and_a_restart_reads_them_anew(
    service: Home, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(_MANIFEST.format(image=service.image))
    service.ok("run", "-d", "-f", str(tmp_path / "pod.yaml"))
    service.until(
        lambda: 'secret "cert" not found' in service.show("web")["message"],
        what="it waits",
        detail=lambda: str(service.show("web")),
    )
    assert service.show("web")["reason"] == "CreateContainerConfigError"
    assert service("secrets", "create", "cert", "-", stdin=_PEM).code == 0
    service.until(lambda: 'secret "db" not found' in service.show("web")["message"], what="it waits on")
    (tmp_path / "env").write_text(f"password={VALUE}\nuser=red\n")
    service.ok("secrets", "create", "db", "--from-env-file", str(tmp_path / "env"))
    service.until_state("web", "running")
    expected = f"{VALUE} {VALUE}\n{_PEM.rstrip()}tls.pem\n"
    service.until(lambda: service.ok("logs", "web").out == expected, what="it has both")

    (tmp_path / "env").write_text("password=second\n")
    service.ok("secrets", "create", "--replace", "db", "--from-env-file", str(tmp_path / "env"))
    service.ok("restart", "web")
    service.until(lambda: service("logs", "web").out.startswith("second second\n"), what="it has the new value")
    service.ok("secrets", "delete", "db", "cert")
    service.ok("rm", "-f", "web")


def test_a_value_among_the_words_is_refused_and_not_repeated(service: Home) -> None:
    for words in (("token", VALUE), (f"token={VALUE}",), ("token", "--from-literal", f"a={VALUE}")):
        refused = service("secrets", "create", *words)
        assert (refused.code, VALUE in refused.err + refused.out) == (2, False)
        assert "does not go on the command line" in refused.err
    refused = service("run", "--secret", "none", service.image)
    assert (refused.code, 'secret "none" not found' in refused.err) == (2, True)
    shown = service("--show-request", "secrets", "create", "shown", "-", stdin=VALUE)
    assert (shown.code, "$VALUE" in shown.err, VALUE in shown.err) == (0, True, False)
    service.ok("secrets", "delete", "shown")
