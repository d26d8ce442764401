"""The library's tutorial runs as printed, and promises what the package keeps."""

from __future__ import annotations

import re
from pathlib import Path

import fairlead_cdi

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "cdi-library.md"


def test_the_examples_of_the_tutorial_run_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "tutorial"})  # noqa: S102 - our own page


def test_type_checkers_of_others_may_read_the_package() -> None:
    assert (Path(fairlead_cdi.__file__).parent / "py.typed").exists()
