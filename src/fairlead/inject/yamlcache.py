"""Keeps JSON copies of YAML CDI specs, keyed by the YAML's SHA-256, because the shim has no YAML parser.

`fairlead cdi prepare` (and whatever of ours writes or watches specs) decodes each YAML spec in the shim's folders and
keeps the document as JSON under the digest of the YAML's bytes. So a conversion can never be taken for one of other
bytes, and one that is missing is reported, with what to do. It is a cache: deleting it is safe.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fairlead import errors, files
from fairlead.inject import fastjson, policy
from fairlead_cdi import directory, parse
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import spec as cdi

UNREAD = directory.UNREAD
_SUFFIX = ".yaml"
_FOLDER_MODE = 0o755


def decoders(folder: str) -> Mapping[str, parse.Decoder]:
    """Return decoders by suffix for `directory.scan`. Args: folder: of the conversions; empty: there are none."""
    return {**directory.JSON_ONLY, _SUFFIX: functools.partial(_decode, folder)}


def _decode(folder: str, data: bytes) -> object:
    try:
        found = policy.read_trusted(f"{folder}/{_name(data)}") if folder else None
        if found is not None:
            return fastjson.decode(found)
    except ValueError as error:
        why = f"its conversion in {folder} cannot be used: {error}"
    else:
        why = "YAML, which the runtime shim does not read by itself"
    raise cdi_errors.DocumentError(why, reason=UNREAD, hint="run `fairlead cdi prepare`, or write the spec as JSON")


def _name(data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}.json"


def is_unread(file: cdi.SpecFile) -> bool:
    """Whether a spec file could not be read for want of a reader of its format."""
    return file.error is not None and file.error.reason == UNREAD


def find_decisive(registry: directory.Registry, priority: int) -> cdi.SpecFile | None:
    """Return a spec that could not be read and that may overrule, or cancel, one in a folder of this priority."""
    return next((file for file in registry.files if is_unread(file) and file.priority >= priority), None)


def keep(folder: Path, documents: Iterable[tuple[bytes, object]]) -> int:
    """Put conversions by and remove all others; returns how many there are.

    Args:    documents: a YAML spec's bytes, and what they decode to. What JSON cannot say is left out.
    Raises:  Unavailable: the folder refuses.
    """
    wanted: dict[str, bytes] = {}
    for data, decoded in documents:
        try:
            wanted[_name(data)] = json.dumps(decoded, allow_nan=False).encode()
        except (TypeError, ValueError):
            continue
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        for name, content in wanted.items():
            files.write_atomic(folder / name, content, durable=False)
        for path in folder.glob("*.json"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)
    except OSError as error:
        message = f"cannot keep converted specs in {folder}: {error.strerror}"
        raise errors.Unavailable(
            message, reason="ConversionFailed", hint=files.next_step(error), path=str(folder)
        ) from error
    return len(wanted)
