"""The library's tutorial runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "cdi.md"


def test_the_examples_of_the_guide_run_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "guide"})  # noqa: S102 - our own page
