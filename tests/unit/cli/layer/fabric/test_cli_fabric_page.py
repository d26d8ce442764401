"""docs/how-to/nvlink-partitions.md: its commands do against the stub what the page prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fabricstub import library
from tests.unit.cli.layer.fabric.test_cli_fabric import Scene

PAGE = Path(__file__).parents[5] / "docs/how-to/nvlink-partitions.md"


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


def test_every_command_of_the_page_prints_what_stands_there(stub: Path, tmp_path: Path) -> None:
    with library.running("tcp:127.0.0.1:0") as manager:
        manager.active = set(range(7, 15))
        scene = Scene(manager, stub, tmp_path)
        scene.env["FAIRLEAD_FABRIC_MANAGER"] = scene.address
        blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        commands = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
        assert len(commands) == 4
        for command in commands:
            line, *printed = command.replace("127.0.0.1:6666", scene.address).splitlines()
            program, verb, *words = line.split()
            assert (program, verb) == ("fairlead", "fabric")
            said = scene.run(*words).splitlines()
            at = -1
            for expected in (one for one in printed if one != "…"):
                pattern = re.escape(expected).replace("…", ".*")
                found = [place for place, one in enumerate(said) if place > at and re.fullmatch(pattern, one)]
                assert found, (line, expected, said)
                at = found[0]
    assert manager.journal == ["deactivate 7", "deactivate 9", "activate 3"]
