"""The one reader of /proc/PID/stat: whatever a program calls itself, and whatever is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.wire.text import procstat

_REST = "S 1 7 7 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 424242 1000 200 18446744073709551615"


@pytest.mark.parametrize(
    "name", ["sh", "a b", "a) S 1 2 (b", ")", "", ") 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99"]
)
def test_a_name_changes_no_field(name: str) -> None:
    line = f"77 ({name}) {_REST}\n"
    assert procstat.started(line) == "424242"
    assert procstat.fields(line)[procstat.STATE] == "S"
    assert procstat.fields(line)[procstat.PARENT] == "1"


@pytest.mark.parametrize("text", ["", "77 (sh)", "77 (sh) S 1 2 3", "\0", ")"])
def test_what_is_cut_short_has_no_start(text: str) -> None:
    assert procstat.started(text) == ""


def test_this_process_began_after_its_parent() -> None:
    own = Path("/proc/self/stat").read_text()
    parent = Path(f"/proc/{procstat.fields(own)[procstat.PARENT]}/stat").read_text()
    assert int(procstat.started(own)) >= int(procstat.started(parent)) > 0
