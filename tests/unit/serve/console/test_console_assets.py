"""What the console ships is what its table says, and nothing of it comes from anywhere else."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.serve.console import app as console
from fairlead.serve.console import static
from fairlead.serve.console.draw import words
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
    found = {path.name: re.findall(r"https?://(?!www\.w3\.org/2000/svg|…)\S+", path.read_text()) for path in own}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}
    assert len(own) > 15


def test_a_file_that_is_not_there_is_not_found() -> None:
    with pytest.raises(errors.NotFound):
        static.find("nix\0.js")


_CUT = re.compile(r"^  const after = .*?(?=^  async function follow)", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_output_is_cleaned_as_the_server_does_it_and_in_time_that_grows_with_its_length() -> None:
    (found,) = _CUT.findall((_ROOM / "static/console.js").read_text())
    chance = random.Random(7)
    parts = ["a", "b", "\r", "\n", "\x1b[31m", "\x07", "\x1b]0;t\x07", "\x1b[0", "\x1b]"]
    texts = ["".join(chance.choices(parts, k=chance.randrange(12))) for _ in range(2000)]
    long = ["x" * 400_000, "\r" * 400_000 + "x", "a\r" * 200_000, "\x1b]" * 200_000]
    program = f"{found}; const texts = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    program += "process.stdout.write(JSON.stringify(texts.map(plain)))"
    done = subprocess.run(
        ("node", "-e", program),
        input=json.dumps([*texts, *long]),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    cleaned = json.loads(done.stdout)
    assert cleaned[: len(texts)] == [words.output(text) for text in texts]
    assert [len(text) for text in cleaned[len(texts) :]] == [400_000, 1, 0, 0]
