"""What the console ships is what its table says, and nothing of it comes from anywhere else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.serve.console import app as console
from fairlead.serve.console import static
from tests.unit.serve.world import World, application, in_process
from tools import console_assets

_ROOM = Path(console.__file__).parent


def test_every_shipped_library_has_the_hash_of_its_table() -> None:
    assert console_assets.problems() == []
    assert all(package["license"] in {"0BSD", "MIT"} for package in console_assets.packages())


def test_a_file_that_was_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in console_assets.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "xterm.js").write_text("other")
    (tmp_path / "more.js").write_text("")
    monkeypatch.setattr(console_assets, "FOLDER", tmp_path)
    monkeypatch.setattr(console_assets, "TABLE", tmp_path / "assets.toml")
    assert [text.partition(":")[0] for text in console_assets.problems()] == ["more.js", "xterm.js"]


def test_the_tool_checks_without_the_network() -> None:
    argv = [sys.executable, console_assets.__file__, "--check"]
    assert subprocess.run(argv, capture_output=True, env={}, check=False).returncode == 0


async def test_files_are_served_under_an_address_that_changes_with_them(world: World) -> None:
    made = console.create_app(application(world.services), has_login=False)
    async with httpx.AsyncClient(transport=in_process(made), base_url="http://localhost") as client:
        for name, asset in static.assets().items():
            answer = await client.get(static.address(name))
            assert answer.content == asset.body
            assert answer.headers["content-type"].startswith(asset.media_type)
            assert "immutable" in answer.headers["cache-control"]
        for name in ("assets.toml", "xterm.LICENSE", "../app.py", "nix.js"):
            assert (await client.get(f"/console/static/{name}")).status_code == 404, name


def test_pages_and_scripts_name_no_other_host() -> None:
    own = [*_ROOM.glob("templates/*.html"), *_ROOM.glob("static/*.*")]
    found = {path.name: re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+", path.read_text()) for path in own}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}
    assert len(own) > 15


def test_a_file_that_is_not_there_is_not_found() -> None:
    with pytest.raises(errors.NotFound):
        static.find("nix\0.js")
