"""Turns a FOCUS export into Parquet, with the library of the extra `fairlead[parquet]`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from typing import Any, BinaryIO, Final

from fairlead import errors

_TIMES: Final = ("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart")
_NUMBERS: Final = (
    "BilledCost",
    "ConsumedQuantity",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "ListCost",
    "ListUnitPrice",
    "PricingQuantity",
)
_DIGITS, _DECIMALS = 38, 12


def library() -> Any:
    """Return pyarrow. Raises: Unavailable (`ParquetNotInstalled`)."""
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        message = "Parquet needs a library that is not installed"
        hint = "pip install pyarrow (the extra fairlead[parquet] is the same), or write CSV: --focus FILE"
        raise errors.Unavailable(message, reason="ParquetNotInstalled", hint=hint) from error
    return pyarrow


def write(pieces: Iterable[bytes], out: BinaryIO) -> None:
    """Write a FOCUS export as Parquet: money and amounts as decimals, times as UTC; a piece at a time.

    Raises: Unavailable (`ParquetNotInstalled`).
    """
    arrow = library()
    times = {name: arrow.timestamp("us", tz="UTC") for name in _TIMES}
    numbers = {name: arrow.decimal128(_DIGITS, _DECIMALS) for name in _NUMBERS}
    with tempfile.TemporaryFile() as kept:
        for piece in pieces:
            kept.write(piece)
        kept.seek(0)
        header = kept.readline().decode().strip().split(",")
        kept.seek(0)
        types = {name: times.get(name) or numbers.get(name) or arrow.string() for name in header}
        convert = arrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
        schema = arrow.schema(list(types.items()))
        with (
            contextlib.closing(arrow.csv.open_csv(kept, convert_options=convert)) as rows,
            arrow.parquet.ParquetWriter(out, schema) as writer,
        ):
            for batch in rows:
                writer.write_batch(batch)
