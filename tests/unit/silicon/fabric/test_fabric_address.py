"""Where a Manager listens, in three forms, and what is none of them; return codes, each with who must act."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.silicon.fabric import address, result
from fairlead.silicon.fabric.address import Kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("127.0.0.1:6666", Kind.INET),
        ("service-vm.local:6666", Kind.INET),
        ("[::1]:6666", Kind.INET),
        ("/run/nvidia-fabricmanager/socket", Kind.UNIX),
        ("3:6666", Kind.VSOCK),
    ],
)
def test_an_address_says_how_the_manager_is_reached(text: str, kind: Kind) -> None:
    assert (address.parse(text).kind, str(address.parse(text))) == (kind, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "x", ":1", "host:", "host:0", "host:65536", "host:x", "4294967296:1", "3:0", "a b:1", "-x:1"),
        *("/run/a\0b", "/run/\x1b[2J", "h:1\n", "h" * 300 + ":1", "/" + "p" * 108, "\udcff:1", "host:\uff11"),
    ],
)
def test_what_is_no_address_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        address.parse(text)
    assert caught.value.reason == "FabricAddressInvalid"


@pytest.mark.parametrize(("code", "row"), result.RESULTS.items())
def test_every_code_has_an_error_whose_act_is_its_rows(code: int, row: result.Result) -> None:
    error = result.error_of(code, "partition 3 was not activated")
    assert result.act_of(error) is row.act
    assert f"({row.name}, {code})" in error.message
    assert error.reason.startswith("Fabric")


def test_codes_are_answered_as_the_policy_says() -> None:
    acts = {act: {code for code, row in result.RESULTS.items() if row.act is act} for act in result.Act}
    assert {-5, -9, -15, -22} <= acts[result.Act.RETRY]
    assert {-17, -18} <= acts[result.Act.LOOK]
    assert acts[result.Act.FAULT] == {-10, -11, -25, -26, -27, -28, -29}
    assert {-1, -6} <= acts[result.Act.BUG]
    assert sorted(result.RESULTS) == list(range(-29, 0))


def test_an_unknown_code_is_the_librarys_fault() -> None:
    error = result.error_of(-99, "partitions were not listed")
    assert isinstance(error, errors.ProtocolError)
    assert result.act_of(error) is None
