"""`fairlead secrets create` and a value where a file is named: refused and not repeated, whatever it is."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Service


@pytest.mark.parametrize("value", ["rosebud", "x" * 65_000, "é" + "\u0301" * 5000, "a." * 5000])
def test_a_value_in_place_of_a_file_is_refused_and_not_repeated(service: Service, value: str) -> None:
    answer = service.fairlead("secrets", "create", "token", value)
    assert (answer.exit_code, value in answer.output) == (2, False)
    assert "does not go on the command line" in answer.stderr
