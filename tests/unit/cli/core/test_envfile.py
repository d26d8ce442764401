"""Files of variables: what a shell takes and docker does not is refused by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.cli.core import options


@pytest.mark.parametrize("line", ["export C=1", "export C", "A = 1", "\tB\tC=2"])
def test_a_name_with_spaces_is_none(tmp_path: Path, line: str) -> None:
    file = tmp_path / "env"
    file.write_text(f"# a remark\nGOOD=a b = c\n{line}\n")
    said = r'line 3 of --env-file ".*env": ".*" is not the name of a variable'
    with pytest.raises(errors.Invalid, match=said) as bad:
        options.environment((), (file,), {})
    assert "without export" in str(bad.value.hint)


def test_values_keep_their_spaces_and_ends_of_lines_of_other_systems_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes(b"A=a b = c\r\n  B= x\n\nC\n")
    assert options.environment((), (file,), {"C": "mine"}) == {"A": "a b = c", "B": " x", "C": "mine"}
