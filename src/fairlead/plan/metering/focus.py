"""Writes charges in the columns of FOCUS, the FinOps Open Cost and Usage Specification, as CSV. Pure.

Source: FOCUS 1.2, https://focus.finops.org/focus-specification/v1-2/: the mandatory columns, and of the others those
that are known here. Columns that begin with `x_` are ours, as the specification allows.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Final

from fairlead.plan.metering import price
from fairlead.plan.metering.price import Pricing
from fairlead.plan.metering.usage import HOUR, MICROS, Charge
from fairlead.wire.text import timestamp

_PROVIDER: Final = "Fairlead"
_UNIT: Final = "Hours"
_SKU: Final = "gpu-hour"
Values = Mapping[str, object]


def _month(at: int, *, months: int) -> str:
    """Return the begin of the month of a time, or of the one after it."""
    begin = dt.datetime.fromtimestamp(at // MICROS, dt.UTC).replace(day=1, hour=0, minute=0, second=0)
    return timestamp.emit((begin + dt.timedelta(days=32 * months)).replace(day=1).timestamp())


def hours(amount: int) -> Decimal:
    """Return microseconds as hours, to the millionth of a millionth."""
    return (Decimal(amount) / HOUR).quantize(Decimal("0.000000000001")).normalize()


_Cell = Callable[[Charge, Pricing, Mapping[str, str]], object]


def _rate(one: Charge, pricing: Pricing) -> Decimal:
    found = pricing.find(one.model)
    return found.hourly if found is not None else Decimal(0)


def _cost(one: Charge, pricing: Pricing, _: Mapping[str, str]) -> object:
    return _plain(price.cost(_rate(one, pricing), one.amount))


def _unit_price(one: Charge, pricing: Pricing, _: Mapping[str, str]) -> object:
    return _plain(_rate(one, pricing))


def _quantity(one: Charge, *_: object) -> object:
    return _plain(hours(one.amount))


def _plain(number: Decimal) -> str:
    return f"{number:f}"


def _sku(one: Charge, pricing: Pricing, _: Mapping[str, str]) -> object:
    found = pricing.find(one.model)
    return f"{_SKU}:{found.model if found is not None else 'unpriced'}"


_FORMULA: Final = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""What a spreadsheet begins a formula with, the wide forms too.  Source: OWASP, CSV Injection."""
_COLUMNS: Final[Mapping[str, _Cell]] = {
    "BilledCost": _cost,
    "BillingAccountId": lambda *_: _PROVIDER.lower(),
    "BillingAccountName": lambda *_: _PROVIDER,
    "BillingCurrency": lambda _, pricing, __: pricing.currency,
    "BillingPeriodEnd": lambda one, *_: _month(one.begin, months=1),
    "BillingPeriodStart": lambda one, *_: _month(one.begin, months=0),
    "ChargeCategory": lambda *_: "Usage",
    "ChargeClass": lambda *_: "",
    "ChargeDescription": lambda one, *_: f"{one.model or 'GPU of unknown model'} held by lease {one.lease}",
    "ChargeFrequency": lambda *_: "Usage-Based",
    "ChargePeriodEnd": lambda one, *_: timestamp.emit(one.end / MICROS),
    "ChargePeriodStart": lambda one, *_: timestamp.emit(one.begin / MICROS),
    "ConsumedQuantity": _quantity,
    "ConsumedUnit": lambda *_: _UNIT,
    "ContractedCost": _cost,
    "ContractedUnitPrice": _unit_price,
    "EffectiveCost": _cost,
    "InvoiceIssuerName": lambda *_: _PROVIDER,
    "ListCost": _cost,
    "ListUnitPrice": _unit_price,
    "PricingCategory": lambda *_: "Standard",
    "PricingCurrency": lambda _, pricing, __: pricing.currency,
    "PricingQuantity": _quantity,
    "PricingUnit": lambda *_: _UNIT,
    "ProviderName": lambda *_: _PROVIDER,
    "PublisherName": lambda *_: _PROVIDER,
    "RegionId": lambda *_: "",
    "RegionName": lambda *_: "",
    "ResourceId": lambda one, *_: one.gpu,
    "ResourceName": lambda one, *_: one.lease,
    "ResourceType": lambda *_: "GPU",
    "ServiceCategory": lambda *_: "Compute",
    "ServiceName": lambda *_: "GPU containers",
    "ServiceSubcategory": lambda *_: "Containers",
    "SkuId": lambda *_: _SKU,
    "SkuMeter": lambda *_: "GPU held",
    "SkuPriceId": _sku,
    "SubAccountId": lambda one, *_: one.namespace,
    "SubAccountName": lambda one, _, tenancies: tenancies.get(one.namespace, one.namespace),
    "Tags": lambda one, *_: json.dumps({"model": one.model, "node": one.node}, ensure_ascii=True, sort_keys=True),
    "x_LeaseId": lambda one, *_: one.lease,
    "x_NodeName": lambda one, *_: one.node,
}
COLUMNS: Final = tuple(_COLUMNS)


def rows(found: Iterable[Charge], pricing: Pricing, tenancies: Mapping[str, str]) -> Iterator[str]:
    """Yield a CSV file line by line, its header first; a GPU without a price costs nothing.

    Args:    tenancies: names of tenancies by namespace.
    """
    yield _line(COLUMNS)
    for one in found:
        yield _line(_guarded(cell(one, pricing, tenancies)) for cell in _COLUMNS.values())


def _guarded(value: object) -> str:
    """Return a cell that no spreadsheet takes for a formula: names of tenancies come from outside."""
    text = str(value)
    return f"'{text}" if text[:1] in _FORMULA else text


def _line(values: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(list(values))
    return out.getvalue()
