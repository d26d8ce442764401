"""Reads objects of resource.k8s.io from files: in any version, several of them, lists as `kubectl get -o json` has."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, files
from fairlead.wire.kubernetes import manifest
from fairlead.wire.kubernetes.resource import dialect

_STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What files hold."""

    items: tuple[manifest.Manifest, ...]
    unread: tuple[str, ...]
    """What is said of objects of this group that cannot be read."""
    others: Mapping[str, int]
    """By kind, how many objects of other groups were passed over."""


def objects(names: Sequence[str]) -> Objects:
    """Return the objects of files. Raises: RequestError: a file that is not there, or is no YAML and no JSON."""
    items, unread, others = list[manifest.Manifest](), list[str](), Counter[str]()
    for name in names:
        for place, document in manifest.documents(_content(name)):
            version, kind = str(document.get("apiVersion", "")), str(document.get("kind", ""))
            if version.partition("/")[0] != dialect.GROUP:
                others[errors.readable(kind or "no kind")] += 1
                continue
            try:
                items.append(dialect.read(document))
            except errors.FairleadError as error:
                unread.append(f"{name}: {place}{error.message}")
    if not items and not unread:
        message = f"no object of {dialect.GROUP} is in {', '.join(names)}"
        raise errors.RequestError(message, reason="ManifestEmpty", hint="`kubectl get resourceslices -o yaml`")
    return Objects(items=tuple(items), unread=tuple(unread), others=dict(sorted(others.items())))


def _content(name: str) -> bytes:
    try:
        if name == _STDIN:
            return sys.stdin.buffer.read(manifest.LARGEST_DUMP + 1)
        return files.read_bounded(Path(name), limit_bytes=manifest.LARGEST_DUMP)
    except OSError as error:
        message = f"cannot read {name}: {error.strerror}"
        raise errors.RequestError(message, reason="FileUnreadable", hint="name a readable file") from error
