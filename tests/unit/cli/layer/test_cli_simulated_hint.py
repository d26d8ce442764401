"""Verbs that ask no service name the flag that means the GPUs which the service here simulates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.liveservice import fairlead, serving


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        (("mig", "apply", "-c", "all-disabled"), "--silicon-simulate"),
        (("mig", "list"), "--silicon-simulate"),
        (("cdi", "generate", "--mode", "nvml"), "--simulate"),
    ],
)
def test_the_flag_is_named_beside_a_service_that_simulates(tmp_path: Path, line: tuple[str, ...], flag: str) -> None:
    without = {"FAIRLEAD_SILICON_ROOT": str(tmp_path), "FAIRLEAD_SILICON_DRIVER_ROOT": str(tmp_path)}
    alone = fairlead(*line, env={**without, "FAIRLEAD_API_SOCKET": str(tmp_path / "none.sock")})
    assert flag not in alone.stderr
    with serving(tmp_path) as service:
        beside = fairlead(*line, env={**without, **service.env})
    assert f"hint: the service here simulates its GPUs: {flag} h100x4 means those" in beside.stderr
