"""Errors of the CDI library arrive in Fairlead's classes, with everything they say."""

from __future__ import annotations

import inspect

import pytest

from fairlead import errors
from fairlead.wire.cdi import translate
from fairlead_cdi import errors as cdi

KINDS = {
    cdi.InvalidRequest: errors.Invalid,
    cdi.WrongType: errors.Invalid,
    cdi.DeviceNotFound: errors.NotFound,
    cdi.HostError: errors.Unavailable,
    cdi.DocumentError: errors.ProtocolError,
}


def test_every_error_that_the_library_raises_has_a_row() -> None:
    classes = [one for _, one in inspect.getmembers(cdi, inspect.isclass) if issubclass(one, cdi.CDIError)]
    assert {one for one in classes if one not in {cdi.CDIError, cdi.RequestError}} == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_keeps_all_but_its_class(kind: type[cdi.CDIError]) -> None:
    @translate.cdi_errors
    def fail() -> None:
        raise kind("it is so", reason="So", hint="do that", path="/x")

    with pytest.raises(errors.FairleadError) as caught:
        fail()
    found = caught.value
    assert type(found) is KINDS[kind]
    assert (found.message, found.reason, found.hint, found.context) == ("it is so", "So", "do that", {"path": "/x"})
    assert isinstance(found.__cause__, kind)


def test_other_errors_and_results_pass() -> None:
    with pytest.raises(KeyError), translate.cdi_errors:
        raise KeyError("x")
    with translate.cdi_errors:
        found = 1
    assert found == 1
