"""Compose files of examples/compose on one machine, unchanged, and the page about them run as printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(300)]
_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "examples" / "compose"
_FILES = sorted(_FOLDER.glob("*.yaml"))
_GPUS = {"comfyui": 8, "vllm": 2}


@pytest.fixture(scope="module")
def box(service: Home) -> Home:
    """A running service with the demo image."""
    service.ok("image", "demo", timeout_s=120)
    return service


@pytest.mark.parametrize("file", _FILES, ids=[one.stem for one in _FILES])
def test_a_published_file_runs_unchanged(box: Home, file: Path) -> None:
    line = ("compose", "-f", str(file))
    up = box(*line, "up", "-d", "--wait", "--wait-timeout", "60", timeout_s=90)
    assert up.code == 0, up.err
    held = json.loads(box.ok("ps", "-o", "json").out)
    assert sum(len(ids) for one in held for ids in one["devices"].values()) == _GPUS.get(file.stem, 1)
    again = box(*line, "up", "-d", timeout_s=60)
    assert "Recreated" not in again.err
    gone = box(*line, "down", "-v", "-t", "1", timeout_s=60)
    assert gone.code == 0, gone.err
    for kind in ("pods", "services", "configmaps", "pvc", "secrets"):
        assert json.loads(box.ok("get", kind, "-o", "json").out)["items"] == [], kind


def test_up_ends_with_the_code_of_a_service_and_names_lead_to_fellows(box: Home, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "name: names\n"
        "services:\n"
        "  db: {image: localhost/demo, command: httpd -f -p 80 -h /etc, stop_grace_period: 1s,\n"
        "       healthcheck: {test: wget -q -O /dev/null http://127.0.0.1/passwd, interval: 1s}}\n"
        "  web:\n"
        "    image: localhost/demo\n"
        "    depends_on: {db: {condition: service_healthy}}\n"
        '    extra_hosts: ["host.docker.internal:host-gateway"]\n'
        "    command:\n"
        "      - sh\n"
        "      - -c\n"
        "      - 'until grep -w db /etc/hosts && grep host.docker.internal /etc/hosts; do sleep 1; done; exit 7'\n"
    )
    up = box("compose", "-f", str(tmp_path / "compose.yaml"), "up", "--exit-code-from", "web", timeout_s=90)
    assert up.code == 7, up.err
    assert "web-1  | " in up.out
    down = box("compose", "-p", "names", "down", timeout_s=60)
    assert down.code == 0, down.err


def test_the_page_is_run_as_it_is_printed(home: Home) -> None:
    programs, work = Path(sys.executable).parent, home.folder / "reader"
    work.mkdir()
    env = {**home.env, "HOME": str(work), "PATH": f"{programs}:{home.env['PATH']}"}
    argv = (sys.executable, _ROOT / "tests/system/pages.py", "--timeout", "100", _ROOT / "docs/how-to/from-compose.md")
    done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
