"""Reads what the driver's own nvidia-smi says: `-q -x` as facts, `dmon` as a table.

Drivers move and rename elements; each fact has the places where releases have had it. Source: the document type that
nvidia-smi prints (nvsmi_device_v12.dtd), `nvidia-smi dmon --help`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_NOTHING: Final = frozenset({"", "N/A", "[N/A]", "None", "Unknown Error", "[Unknown Error]", "Not Supported"})


@dataclass(frozen=True, slots=True)
class Answer:
    """One `nvidia-smi -q -x`."""

    root: ET.Element

    @property
    def gpus(self) -> list[ET.Element]:
        """Its GPUs, in its order."""
        return self.root.findall("gpu")

    def text(self, *places: str) -> str | None:
        """Return a fact of the machine; None: it does not tell."""
        return text_of(self.root, *places)


def parse(document: str) -> Answer:
    """Read the XML.

    Raises: ValueError: it is none. The document comes from a program of the driver, and names no entity of its own.
    """
    if "<!ENTITY" in document:
        raise ValueError("nvidia-smi's document defines entities, which it never does")
    try:
        return Answer(ET.fromstring(document))  # noqa: S314 - see above
    except ET.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x printed no XML: {error}") from error


def text_of(element: ET.Element, *places: str) -> str | None:
    """Return the first of these places that says something."""
    for place in places:
        found = (element.findtext(place) or "").strip()
        if found not in _NOTHING:
            return found
    return None


def number_of(element: ET.Element, *places: str) -> float | None:
    """Return the number in the first of these places that has one, without its unit."""
    found = text_of(element, *places)
    number = _NUMBER.search(found) if found else None
    return float(number.group()) if number else None


def address_of(element: ET.Element) -> str:
    """Return a GPU's PCI address as sysfs writes it: four digits of domain where they suffice."""
    long = element.get("id", "") or element.findtext("pci/pci_bus_id") or ""
    domain, _, rest = long.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def parse_dmon(text: str) -> list[dict[str, str]]:
    """Return the rows of `nvidia-smi dmon`, by its own column names; the second heading, of units, is left out."""
    headings = [line.lstrip("# ").split() for line in text.splitlines() if line.startswith("#")]
    if not headings:
        return []
    names = headings[0]
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [dict(zip(names, row, strict=False)) for row in rows]
