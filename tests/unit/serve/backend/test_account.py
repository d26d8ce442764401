"""Whose namespace it is, by the name of the account."""

from __future__ import annotations

import pytest

from fairlead.serve.backend import account


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("user-0", "root"), ("user-65534", "nobody"), ("default", ""), ("user-", ""), ("user-3999999999", "")],
)
def test_an_account_is_named_where_the_machine_knows_it(namespace: str, name: str) -> None:
    assert account.owner(namespace) == name


@pytest.mark.parametrize("uid", ["9" * 40, "-1"])
def test_a_number_that_no_account_can_have_has_no_name(uid: str) -> None:
    assert account.owner(f"user-{uid}") == ""
