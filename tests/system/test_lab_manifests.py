"""The lab's manifests of examples/lab on one machine, unchanged: the acceptance of the issue that asked for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(600)]
_FOLDER = Path(__file__).parents[2] / "examples" / "lab"


@pytest.fixture(scope="module")
def lab(service: Home) -> Iterator[Home]:
    """A running service with the demo image."""
    service.ok("image", "demo", timeout_s=120)
    yield service
    service("delete", "-f", str(_FOLDER), "--no-wait", timeout_s=120)


def _objects(home: Home, kind: str) -> list[dict[str, Any]]:
    return list(json.loads(home.ok("get", kind, "-o", "json").out)["items"])


def _is_ready(home: Home, name: str) -> bool:
    pod = next(one for one in _objects(home, "pods") if one["metadata"]["name"] == name)
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


def test_every_manifest_of_the_lab_runs_unchanged(lab: Home) -> None:
    made = lab("apply", "-f", str(_FOLDER), timeout_s=120)
    assert made.code == 0, made.err
    assert made.out.splitlines() == [
        "configmap/models created",
        "pod/inference created",
        "persistentvolumeclaim/model-cache created",
        "secret/hub-token created",
        "deployment.apps/model-server created",
        "service/model-server created",
        "persistentvolumeclaim/claim-ann created",
        "pod/jupyter-ann created",
        "job.batch/training created",
    ]
    refused = [line for line in made.err.splitlines() if not line.startswith("warning: ")]
    assert refused == []

    done = lab.ok("rollout", "status", "deployment/model-server", "--timeout", "180", timeout_s=200)
    assert done.out.splitlines()[-1] == 'deployment "model-server" successfully rolled out'
    lab.until(lambda: _is_ready(lab, "inference"), what="the inference server is ready", timeout_s=120)
    lab.until(lambda: _is_ready(lab, "jupyter-ann"), what="the notebook is ready", timeout_s=120)
    lab.until(
        lambda: _objects(lab, "jobs")[0]["status"].get("succeeded") == 4, what="the training is done", timeout_s=180
    )

    # A notebook asks the model server by its name, on the port of the Service.
    # busybox is static and cannot ask for names itself: it reads what other programs resolve them by.
    asked = "wget -qO - http://$(awk '/ model-server.default /{print $1}' /etc/hosts)/models"
    lab.until(
        lambda: "H100" in lab("exec", "-c", "notebook", "jupyter-ann", "--", "sh", "-c", asked).out,
        what="the model server answers by its name",
        timeout_s=60,
    )
    log = lab.ok("exec", "-c", "notebook", "jupyter-ann", "--", "cat", "/home/ann/work/log").out
    assert log.startswith("ann on ")
    assert "GPU 0" in log
    shards = sorted(
        lab.ok("logs", one["metadata"]["name"]).out.splitlines()[0]
        for one in _objects(lab, "pods")
        if one["metadata"]["name"].startswith("training-")
    )
    assert shards == [f"shard {number} of 4" for number in range(4)]

    held = json.loads(lab.ok("ps", "-o", "json").out)
    ids = [device for item in held for ids in item["devices"].values() for device in ids]
    assert len(ids) == len(set(ids)) == 3, "the server, the inference server and the notebook have a GPU each"
    gone = lab("delete", "-f", str(_FOLDER), timeout_s=180)
    assert gone.code == 0, gone.err
    lab.until(lambda: lab.free_gpus() == 8, what="every GPU is free again", timeout_s=60)


@pytest.mark.parametrize(
    ("name", "starts"), [("lab-manifests.md", True), ("workloads.md", False)], ids=["lab-manifests.md", "workloads.md"]
)
def test_a_page_about_manifests_is_run_as_it_is_printed(home: Home, name: str, starts: bool) -> None:
    root = _FOLDER.parents[1]
    programs, work = Path(sys.executable).parent, home.folder / "reader"
    work.mkdir()
    (work / "examples").symlink_to(root / "examples")
    env = {**home.env, "HOME": str(work), "PATH": f"{programs}:{home.env['PATH']}"}
    page = root / f"docs/how-to/{name}"
    if not starts:  # it begins beside a running service
        home.up()
        home.ok("image", "demo", timeout_s=120)
    argv = (sys.executable, root / "tests/system/pages.py", "--timeout", "200", page)
    done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if not starts:
        home.down()  # pods that were deleted may take their grace; nothing of them is left behind
