"""Replaces what names one machine in a report: its host name, serial numbers, UUIDs, network names of clusters.

Replacements are as long as what they replace and count up, so that two boards stay two and records of bytes keep their
layout. The same value is replaced by the same name everywhere.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any, Final

_UUID: Final = re.compile(
    rb"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}(?![0-9a-fA-F])"
)
_LEAST: Final = 4
"""A shorter host name would be found inside other words."""


class Mask:
    """What has been replaced so far."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Begin. Args: names: values to replace beside UUIDs: the host's name, serial numbers."""
        self._names: dict[bytes, bytes] = {}
        for name in names:
            if len(name) >= _LEAST:
                self._names[name.encode()] = _stand_in(len(self._names) + 1, len(name.encode()))
        self._uuids: dict[bytes, bytes] = {}

    def replace(self, data: bytes) -> bytes:
        """Return bytes of the same length without names."""
        for name, instead in sorted(self._names.items(), key=lambda pair: -len(pair[0])):
            data = data.replace(name, instead)
        return _UUID.sub(self._uuid, data)

    def text(self, text: str) -> str:
        """Return a text without names."""
        return self.replace(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def document(self, value: Any) -> Any:
        """Return JSON without names, in keys and values."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.document(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(item) for item in value]
        return value

    def record(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a record of `recording` without names: they lie in bytes that are written in base64."""
        calls = {}
        for asked, answers in document["calls"].items():
            shown = {key: self._answer(value) if isinstance(value, dict) else value for key, value in answers.items()}
            calls[_ENCODED.sub(lambda found: "&" + self._coded(found.group(1)), self.text(asked))] = shown
        return {**document, "calls": calls}

    def _answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "out": [self._coded(data) for data in answer["out"]]}

    def _coded(self, data: str) -> str:
        return base64.b64encode(self.replace(base64.b64decode(data))).decode()

    def _uuid(self, found: re.Match[bytes]) -> bytes:
        whole = found.group()
        prefix = whole[:4] if whole[:4] in (b"GPU-", b"MIG-") else b""
        bare = whole[len(prefix) :].lower()
        number = len(self._uuids) + 1
        return prefix + self._uuids.setdefault(bare, f"00000000-0000-4000-8000-{number:012x}".encode())


_ENCODED: Final = re.compile(r"&([A-Za-z0-9+/=]{4,})(?=[,)])")


def _stand_in(number: int, length: int) -> bytes:
    return f"{number:0{length}d}"[-length:].encode()
