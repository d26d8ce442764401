"""What the image is made from is stated twice where two programs read it; the statements agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.image import inputs

_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)", re.MULTILINE)
_LOCKS = ("runtime.lock", "build.lock")


def _pins(path: Path) -> dict[str, set[str]]:
    """Return version and hashes by name."""
    blocks = re.split(r"\n(?=\S)", path.read_text())
    found = ((_PIN.match(block), block) for block in blocks)
    return {pin[1]: {pin[2], *re.findall(r"sha256:\w+", block)} for pin, block in found if pin}


@pytest.mark.parametrize("name", _LOCKS)
def test_the_image_has_what_the_tests_ran_with(root: Path, name: str) -> None:
    every, mine = _pins(root / "requirements.lock"), _pins(root / "tools" / "image" / name)
    assert mine
    assert {key: value for key, value in mine.items() if every.get(key) != value} == {}, "run `make lock`"


def test_the_image_has_every_dependency_and_no_tool_of_the_tests(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    packages = (*project["dependencies"], *project["optional-dependencies"]["server"])
    wanted = {re.split(r"[\[><=]", name)[0] for name in packages}
    mine = _pins(root / "tools" / "image" / "runtime.lock")
    assert wanted - {"fairlead-cdi"} <= mine.keys(), "run `make lock`"  # its wheel is built beside ours
    assert mine.keys() & {"pytest", "mypy", "ruff", "grpcio-tools", "hatchling", "setuptools", "pip"} == set()


def test_the_builder_sees_what_the_fingerprint_is_over(root: Path) -> None:
    lines = (root / ".dockerignore").read_text().splitlines()
    seen = {line.removeprefix("!") for line in lines if line.startswith("!")} - {"tools"}
    assert seen == set(inputs.SELECTED)
    assert {line.removeprefix("**/") for line in lines if line.startswith("**/")} == set(inputs.LEFT_OUT)
