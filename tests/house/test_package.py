"""Man pages and completion say what the program says: they are made of its commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from fairlead.cli import main, verbs
from fairlead.cli.admin import completion
from tools.package import manpages, tree

_PAGES = manpages.pages()


def test_every_verb_has_its_page_and_hidden_ones_have_none() -> None:
    shown = {f"fairlead-{name}.1" for name, verb in verbs.VERBS.items() if not verb.is_hidden}
    assert shown | {"fairlead.1", "fairlead-image-demo.1", "fairlead-service-install.1"} <= set(_PAGES)
    assert not {f"fairlead-{name}.1" for name, verb in verbs.VERBS.items() if verb.is_hidden} & set(_PAGES)


def test_a_page_has_its_name_options_and_words() -> None:
    page = _PAGES["fairlead-image-demo.1"]
    assert "fairlead\\-image\\-demo \\- Make a small image" in page
    assert ".B \\-\\-busybox FILE" in page
    assert ".BR fairlead\\-image (1)" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_no_complaint(tmp_path: Path) -> None:
    for name, text in _PAGES.items():
        (tmp_path / name).write_text(text)
    argv = ("groff", "-man", "-ww", "-z", "-Tutf8", *(str(tmp_path / name) for name in sorted(_PAGES)))
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}")
    script = tmp_path / "fairlead"
    script.write_text(completion.script(main.root, shell))
    flag = "--no-execute" if shell == "fish" else "-n"
    assert subprocess.run((program, flag, str(script)), capture_output=True, text=True, check=False).stderr == ""


def test_an_entry_of_the_lock_is_its_version_and_its_hashes() -> None:
    lock = "a==1 \\\n    --hash=sha256:1\nssh==2 \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\nz==4\n"
    assert tree.entry(lock, "ssh") == "ssh==2 \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n"
    with pytest.raises(ValueError, match="not in the lock"):
        tree.entry(lock, "s")


def test_what_is_installed_beside_the_image_s_lock_finds_there_what_it_needs() -> None:
    lock = (tree.ROOT / "tools/image/runtime.lock").read_text()
    for name in tree.BESIDE:
        needed = [one for one in metadata.requires(name) or () if "extra ==" not in one]
        assert needed, name
        for one in needed:
            word = re.split(r"[^A-Za-z0-9_-]", one)[0].replace("_", "-")
            assert tree.entry(lock, word), one
