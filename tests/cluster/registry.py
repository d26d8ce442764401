"""Debian's docker-registry inside the machine of a cluster, with one user; `tests/system/setup.sh` brings the program.

It listens on the machine's loopback, where containerd speaks to registries without TLS.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead import errors
from tools.cluster import home, image

PROGRAM: Final = Path.home() / ".cache/fairlead/debian/registry/usr/bin/docker-registry"
ADDRESS: Final = "localhost:5077"
USER: Final = "red"
PASSWORD: Final = "rosebud-7f3a"
_HASHED: Final = "$2b$04$ThNDPf278rca9hIpEhjzfuJFZhOeqiPCYKT7pHYw7Lsu4XllwNxJm"
"""bcrypt of it: registries take no other."""
_CONFIG: Final = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:5077"}}
auth: {{htpasswd: {{realm: test, path: {root}/htpasswd}}}}
"""


@contextlib.contextmanager
def serving(cluster: home.Cluster, name: str) -> Iterator[str]:
    """Serve busybox under a repository's name, which the node has no longer, and yield the image's whole name."""
    root = cluster.folder / "registry"
    root.mkdir(exist_ok=True)
    (root / "htpasswd").write_text(f"{USER}:{_HASHED}\n")
    (root / "config.yml").write_text(_CONFIG.format(root=root))
    process = cluster.host.start((str(PROGRAM), "serve", str(root / "config.yml")), cluster.log("docker-registry"))
    private = f"{ADDRESS}/{name}"
    try:
        _load(cluster, private)
        _push(cluster, private)
        _ctr(cluster, "rm", private)
        yield private
    finally:
        process.end(signal.SIGTERM, timeout_s=10)


def _load(cluster: home.Cluster, private: str) -> None:
    """Give the node an image of its own: of two names of one, containerd forgets the other with the first."""
    path = cluster.folder / "private.tar"
    image.write_busybox(path, private, extra={"etc/private": b"yes\n"})
    cluster.load_image(path)
    path.unlink()


def _push(cluster: home.Cluster, private: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return _ctr(cluster, "push", "--plain-http", f"--user={USER}:{PASSWORD}", private)
        except errors.Unavailable:  # it does not listen yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _ctr(cluster: home.Cluster, *arguments: str) -> None:
    cluster.host.run("ctr", "-n", "k8s.io", "images", *arguments)
