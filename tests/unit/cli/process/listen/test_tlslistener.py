"""The door on TLS refuses limits that would let nobody in."""

from __future__ import annotations

import math

import pytest

from fairlead import errors, settings
from fairlead.cli.process.listen import tlslistener


@pytest.mark.parametrize(("per_s", "burst"), [(-1.0, 5), (math.inf, 5), (math.nan, 5), (1.0, 0), (1.0, -3)])
def test_a_rate_that_lets_no_request_through_is_refused(per_s: float, burst: int) -> None:
    with pytest.raises(errors.Invalid) as refused:
        tlslistener.policy(settings.APISettings(key_rate=per_s, key_burst=burst))
    assert refused.value.reason == "RateInvalid"


def test_a_rate_of_nothing_is_no_limit_whatever_its_burst() -> None:
    found = tlslistener.policy(settings.APISettings(address_rate=0.0, address_burst=0))
    assert (found.address.per_s, found.key.per_s, found.key.burst) == (0.0, 50.0, 200)
