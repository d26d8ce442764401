"""`down` where the service was killed: what goes on without it is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.engine import machine
from fairlead.engine.port import ContainerPhase, ContainerState
from tests.unit.cli.liveservice import fairlead

HOME = "6b0f7f5e-0000-4000-8000-000000000000"


class Engine:
    async def list_containers(self, labels: Mapping[str, str]) -> tuple[ContainerState, ...]:
        assert labels == {"fairlead.dev/home": HOME}
        phases = (("train", ContainerPhase.RUNNING), ("past", ContainerPhase.EXITED))
        return tuple(
            ContainerState(
                engine="fake", id=name, name=name, phase=phase, labels={"io.kubernetes.pod.name": name}, image="demo"
            )
            for name, phase in phases
        )


@pytest.mark.parametrize("has_state", [True, False])
def test_down_names_the_containers_that_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_state: bool) -> None:
    monkeypatch.setattr(machine, "open_engine", lambda _: Engine())
    if has_state:
        (tmp_path / "kubelet").mkdir()
        (tmp_path / "kubelet" / "home-id").write_text(f"{HOME}\n")
    done = fairlead("down", "--state-folder", str(tmp_path), env={})
    assert (done.exit_code, done.stdout) == (0, f"no service runs with state folder {tmp_path}\n")
    assert ("containers of it go on: train\n" in done.stderr) == has_state
