"""Judges pages for people who use a keyboard or a screen reader, with axe-core from npm, whose hash is here.

Source: axe-core, "API Reference", axe.run; its impact levels are minor, moderate, serious and critical.
"""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
from browser import Page

_VERSION: Final = "4.14.1"
_SHA512: Final = (
    "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73"
    "4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5"
)
_CACHE: Final = Path(__file__).parents[2] / ".cache" / "axe"
_ASK: Final = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => one.id + ": " + one.nodes.map(node => node.html.slice(0, 200)).slice(0, 3).join(" | ")))"""


def script() -> str:
    """Return axe-core; npm is asked for it once."""
    packed = _CACHE / f"axe-core-{_VERSION}.tgz"
    if not packed.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        argv = ("npm", "pack", f"axe-core@{_VERSION}", "--silent", "--pack-destination", str(_CACHE))
        try:
            done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
        except (FileNotFoundError, subprocess.TimeoutExpired):
            pytest.skip("npm is not there, or does not answer: it has axe-core")
        if done.returncode:
            pytest.skip(f"npm gave no axe-core: {done.stderr.decode()[-200:]}")
    data = packed.read_bytes()
    assert hashlib.sha512(data).hexdigest() == _SHA512
    with tarfile.open(packed) as archive:
        found = archive.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


def problems(page: Page, axe: str) -> Any:
    """Return what is serious or critical on the page that is open."""
    page.call("Runtime.evaluate", expression=axe)
    return page.ask(_ASK)
