"""docs/how-to/pass-gpus-through.md: its commands do on a made-up machine what the page prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.cli.layer import test_cli_vfio

PAGE = Path(__file__).parents[4] / "docs/how-to/pass-gpus-through.md"


def test_the_page_leads_from_a_driver_to_a_bound_gpu_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = test_cli_vfio.Machine(tmp_path, monkeypatch)
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    commands = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    assert len(commands) > 7
    for command in commands:
        line, *printed = command.splitlines()
        program, group, *words = line.split()
        assert (program, group) == ("fairlead", "vfio")
        said = machine.run(*words).splitlines()
        for expected in filter(lambda text: text != "…", printed):
            pattern = re.escape(expected).replace("…", ".*")
            assert any(re.fullmatch(pattern, one) for one in said), (line, expected, said)
    assert machine.kernel.driver(test_cli_vfio.GPU) == "nvidia"
    assert machine.kernel.resets
