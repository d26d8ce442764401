"""A stop that waits for its grace is hurried by a removal with a shorter one."""

from __future__ import annotations

import pytest
from home import Home

pytestmark = pytest.mark.podman


def test_a_removal_with_a_shorter_grace_does_not_wait_for_the_stop_before_it(service: Home) -> None:
    service.start("deaf", "-g", "1")  # sleep, as process 1, ignores SIGTERM
    service.ok("stop", "--no-wait", "--grace", "300", "deaf")
    service.until(
        lambda: "Stopping" in service.podman("ps", "-a"),
        what="podman waits for its end",
        detail=lambda: service.podman("ps", "-a") + str(service.show("deaf")),
    )
    service.rm("deaf")
    assert service.free_gpus() == 8
