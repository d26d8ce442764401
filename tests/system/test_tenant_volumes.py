"""A tenant's hostPath volume is judged by what it really is, with the real engine and the real kernel."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman

_QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: few, namespace: acme}
spec: {hard: {pods: "8"}}
"""


@pytest.fixture(scope="module")
def acme(service: Home) -> Home:
    """The service, with a tenant's namespace `acme`."""
    (service.folder / "quota.yaml").write_text(_QUOTA)
    service.ok("quota", "apply", "-f", str(service.folder / "quota.yaml"))
    return service


def _started(home: Home, name: str, *volumes: str) -> None:
    options = [word for one in volumes for word in ("-v", one)]
    command = ("sh", "-c", "touch /out/ran; sleep 1000")
    home.ok("run", "-d", "-n", "acme", "--name", name, *options, home.image, "--", *command)


def _reason(home: Home, name: str) -> str:
    items = home.ok("ps", "-a", "-n", "acme", "-o", "json").data
    return next(str(item) for item in items if item["name"] == name)


def test_a_link_in_an_allowed_folder_leads_a_tenant_nowhere(acme: Home, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    _started(acme, "astray", f"{tmp_path}:/out", f"{tmp_path}/link:/x")
    acme.until(lambda: "HostPathForbidden" in _reason(acme, "astray"), what="it is refused")
    assert not (tmp_path / "ran").exists()
    acme.ok("rm", "-f", "-n", "acme", "astray")


@pytest.mark.slow
def test_a_link_inside_the_folder_is_followed(acme: Home, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    _started(acme, "inside", f"{tmp_path}/link:/out")
    acme.until((tmp_path / "real" / "ran").exists, what="it ran")
    acme.ok("rm", "-f", "-n", "acme", "inside")


@pytest.mark.slow
def test_a_link_that_is_exchanged_all_the_time_never_gets_a_tenant_past_it(acme: Home, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "good").symlink_to("real")
    (tmp_path / "evil").symlink_to("/etc")
    (tmp_path / "out").mkdir()
    over = threading.Event()

    def exchange() -> None:
        while not over.is_set():
            for name in ("good", "evil"):
                (tmp_path / "next").symlink_to((tmp_path / name).readlink())
                (tmp_path / "next").rename(tmp_path / "link")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for number in range(6):
            name = f"race{number}"
            command = ("sh", "-c", "test ! -e /x/passwd || touch /out/past; touch /out/ran")
            options = ("-v", f"{tmp_path}/out:/out", "-v", f"{tmp_path}/link:/x")
            acme.ok("run", "-d", "-n", "acme", "--name", name, *options, acme.image, "--", *command)
            acme.until(
                lambda name=name: any(word in _reason(acme, name) for word in ("HostPathForbidden", "Completed")),  # type: ignore[misc]
                what=f"{name} is refused or has ended",
            )
    finally:
        over.set()
        thread.join()
    assert not (tmp_path / "out" / "past").exists()
    acme.ok("rm", "-f", "-n", "acme", *(f"race{number}" for number in range(6)))
