"""Reads prices of GPUs from the setting, and prices a charge. Pure; money is decimal, in millionths at most."""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fairlead import errors
from fairlead.plan.metering.usage import HOUR

_MICRO: Final = Decimal("0.000001")
_LONGEST: Final = 12
_NUMBER: Final = re.compile(rf"[0-9]{{1,{_LONGEST}}}(\.[0-9]{{1,6}})?")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
EVERY: Final = "*"
"""The model that means every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an hour of a GPU costs."""

    model: str
    """Part of the product name, in any case; `*`: every GPU."""
    hourly: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """All prices, in one currency."""

    currency: str = "USD"
    """ISO 4217."""
    prices: tuple[Price, ...] = ()
    """The first whose model is a part of the product name counts."""

    def find(self, model: str) -> Price | None:
        """Return the price of a product; None: it has none."""
        return next((one for one in self.prices if one.model == EVERY or one.model.lower() in model.lower()), None)


def read(prices: str, currency: str) -> Pricing:
    """Read the settings `metering.prices` and `metering.currency`.

    Args:    prices: `H100=2.50,A100=1.20,*=0.50`; empty: none.
    Raises:  Invalid (`PricesInvalid`): with the part that is wrong.
    """
    if not _CURRENCY.fullmatch(currency):
        raise _invalid("metering.currency", currency, "three capital letters of ISO 4217, as USD")
    found: list[Price] = []
    for part in filter(None, (one.strip() for one in prices.split(","))):
        model, sign, number = (one.strip() for one in part.rpartition("="))
        if not sign or not model or not _NUMBER.fullmatch(number):
            raise _invalid("metering.prices", part, "MODEL=PRICE, as H100=2.50, with at most six decimals")
        found.append(Price(model=model, hourly=Decimal(number)))
    return Pricing(currency=currency, prices=tuple(found))


def _invalid(key: str, text: str, form: str) -> errors.Invalid:
    return errors.Invalid(f'{key}: "{text}" is not {form}', reason="PricesInvalid", hint=f"set {key} again")


def cost(hourly: Decimal, amount: int) -> Decimal:
    """Return what an amount of GPU costs, to the millionth, halves to even. Args: amount: microseconds."""
    with decimal.localcontext(prec=50):
        return (hourly * amount / HOUR).quantize(_MICRO, rounding=decimal.ROUND_HALF_EVEN)
