"""A backup of a service that runs, put back in the same place and in another folder."""

from __future__ import annotations

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(240)]


def test_after_a_restore_what_runs_is_taken_over_and_what_is_not_listed_goes(home: Home) -> None:
    home.up()
    home.start("kept", "-g", "1")
    file = home.folder / "b.tar"
    home.ok("state", "backup", str(file))
    home.start("later", "-g", "1")
    kept = home.show("kept")
    refused = home("state", "restore", "--set-aside", str(file))
    assert (refused.code, "in use by another fairlead" in refused.err) == (4, True)
    home.down("--keep")
    home.ok("state", "restore", "--set-aside", str(file))
    home.up()
    again = home.until_state("kept", "running")
    assert (again["gpu_ids"], again["restarts"]) == (kept["gpu_ids"], kept["restarts"])
    home.until(lambda: len(home.containers()) == 1, what="what the backup does not list is removed")
    assert "later" not in {item["name"] for item in home.ask("/v1/containers?all=true")["items"]}
    home.rm("kept")
    home.down()


def test_in_another_folder_containers_that_promised_it_start_again_and_the_others_end(home: Home) -> None:
    home.up()
    home.start("service", "--restart", "always", "-g", "1")
    home.start("once", "-g", "1")
    file = home.folder / "b.tar"
    home.ok("state", "backup", str(file))
    home.down()
    other = home.folder / "other"
    home.extra["FAIRLEAD_STATE_FOLDER"] = str(other)
    assert "another machine or another folder" in " ".join(home.ok("state", "restore", str(file)).out.split())
    assert not (other / "kubelet" / "home-id").exists()
    home.up()
    ended = home.until_state("once", "failed")
    assert (ended["reason"], ended["exit_code"]) == ("ContainerStatusUnknown", 137)
    home.until_state("service", "running")
    home.rm("service")
    home.down()
