"""Named volumes with a real engine: they outlive containers and the service, and no user of the host enters them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman


def test_a_named_volume_outlives_its_containers_and_the_service(service: Home) -> None:
    write = "id -u > /data/who; echo kept > /data/file; chmod 600 /data/file"
    service.ok("run", "--rm", "-v", "cache:/data", service.image, "--", "sh", "-c", write)
    service.ok("run", "--rm", "-u", "65534:65534", "-v", "cache:/data", service.image, "--", "touch", "/data/nobodys")
    (shown,) = json.loads(service.ok("volume", "inspect", "cache").out)
    folder = Path(shown["path"])
    assert (folder / "file").read_text() == "kept\n"
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700

    service.down()
    service.up()
    read_only = ("run", "--rm", "-v", "cache:/data:ro", service.image, "--", "sh", "-c")
    assert service.ok(*read_only, "cat /data/file").out == "kept\n"
    assert service(*read_only, "touch /data/more").code != 0
    service.start("holder", "-v", "cache:/data")
    refused = service("volume", "rm", "cache")
    assert refused.code == 4
    assert "in use by holder" in refused.err
    service.rm("holder")
    assert service.ok("volume", "rm", "cache").out == "cache\n"
    assert not folder.exists()
