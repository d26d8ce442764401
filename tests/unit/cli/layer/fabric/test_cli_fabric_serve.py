"""`fairlead fabric serve` as a process: ready, asked by its host, alone on its socket, ended by SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fabricstub import library
from tests.unit.cli.layer.fabric.test_cli_fabric import ARTICLE, Scene


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


def test_the_agent_runs_until_sigterm_and_a_killed_manager_costs_one_call(stub: Path, tmp_path: Path) -> None:
    secret = tmp_path / "fabric.secret"
    secret.write_bytes(b"k" * 44)
    secret.chmod(0o600)
    with library.running("tcp:127.0.0.1:0") as manager:
        manager.active = set(range(7, 15))
        scene = Scene(manager, stub, tmp_path)
        program = (sys.executable, "-m", "fairlead.cli.main", "fabric", "serve", "--address", scene.address)
        command = (*program, "--listen", str(tmp_path / "a.sock"))
        env = scene.env
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as served:
            try:
                assert served.stdout is not None
                assert f"on {tmp_path}/a.sock" in served.stdout.readline()
                assert scene.run("--agent", str(tmp_path / "a.sock"), "list") == ARTICLE
                second = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
                assert (second.returncode, "another one listens there" in second.stderr) == (6, True)
                served.send_signal(signal.SIGTERM)
                assert served.wait(10) == 0
            finally:
                served.kill()
