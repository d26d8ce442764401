"""Devices changed while a container runs, after the service, its kubelet and its checkpoint are gone."""

from __future__ import annotations

import json

import pytest
from home import Home
from test_attach import audit, indexes, seen

pytestmark = [pytest.mark.podman, pytest.mark.timeout(240)]


def test_without_a_service_the_checkpoint_says_what_a_container_was_given(home: Home) -> None:
    home.up()
    home.start("a", "-g", "1")
    (own,) = indexes(home, "a")
    home.kill()
    name = next(one["Names"][0] for one in home.containers())
    (report,) = audit(home, name)
    assert (report["clean"], report["source"]) == (True, "checkpoint")
    assert report["opens"][f"/dev/nvidia{own}"] == "ENXIO"
    (home.state / "kubelet/device-manager.json").chmod(0o666)
    done = home("isolate", "audit", name)
    assert done.code == 6, done.err
    assert "others than root could have written" in done.out
    assert "ok " not in done.out


@pytest.mark.slow
def test_what_was_attached_outlives_a_kill_of_the_kubelet_and_its_checkpoint(home: Home) -> None:
    home.up()
    home.start("a", "-g", "1")
    (first,) = indexes(home, "a")
    other = (first + 1) % 8
    home.ok("attach", "a", str(other))
    home.kill()
    checkpoint = home.state / "kubelet/device-manager.json"
    assert len(json.loads(checkpoint.read_text())["grants"][0]["device_ids"]) == 2
    checkpoint.write_text("{")

    home.up()
    home.until(lambda: home.kubelet_pid() > 0, what="a kubelet runs")
    home.until_state("a", "running")
    assert indexes(home, "a") == {first, other}
    assert seen(home, "a") == {first: "ENXIO", other: "ENXIO"}
    home.start("b", "-g", "6")
    assert not indexes(home, "b") & {first, other}
    refused = home("attach", "b", str(other))
    assert refused.code == 4, refused.err
