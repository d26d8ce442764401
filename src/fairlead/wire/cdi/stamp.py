"""Stamps a generated spec with what it was made from: boot, driver and GPUs, so that a stale one is recognised.

The GPUs are there for NVIDIA_REQUIRE_*: who starts a container holds its image to the very GPUs that the spec brings,
without asking the driver. CDI has annotations for all this, at the price of version 0.6.0, which the oldest engines
drop in silence. So a stamp usually lies beside its spec, in a file whose suffix engines do not read; it carries the
digest of the spec, and says nothing about any other bytes. Where annotations are wanted, `annotate` writes them. `find`
reads either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

from fairlead.frozen import frozen
from fairlead_cdi import spec as cdi

SUFFIX: Final = ".stamp"
"""Appended to the whole name of a spec file."""
PLACES: Final = ("file", "annotations", "none")
"""Where a stamp may be put."""
_PREFIX: Final = "fairlead.dev/"
_KEYS: Final = {"boot_id": "boot-id", "driver": "driver", "version": "driver-version", "cuda": "cuda-version"}
_GPUS: Final = f"{_PREFIX}gpus"


@frozen
class Stamp:
    """Describes what one spec was made from; an empty text is not known."""

    boot_id: str = ""
    driver: str = ""
    """Who made the silicon, `nvidia`."""
    version: str = ""
    """Of the driver."""
    cuda: str = ""
    """Newest CUDA that the driver runs, `12.4`."""
    gpus: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Compute capability `9.0` and brand `nvidia` of each GPU, by its device node in a container."""

    def facts(self) -> dict[str, list[str]]:
        """Return what `plan.cdi.requirement.hosts` needs; empty where requirements mean another driver."""
        if self.driver != "nvidia":
            return {}
        return {"driver": [self.version, self.cuda], **{node: list(pair) for node, pair in self.gpus.items()}}

    def staleness(self, boot_id: str, versions: Mapping[str, str]) -> tuple[str, ...]:
        """Return the reasons why a spec with this stamp is stale; a fact that is not known is not a reason.

        Args: boot_id: of the running kernel.   versions: driver versions that are loaded now, by `driver`.
        """
        found = []
        if self.boot_id and boot_id and self.boot_id != boot_id:
            found.append(f"was generated in another boot ({self.boot_id}, this is {boot_id})")
        now = versions.get(self.driver, "")
        if self.version and now and self.version != now:
            found.append(f"was generated for {self.driver} driver {self.version}, {now} is loaded")
        return tuple(found)


def annotate(spec: cdi.Spec, stamp: Stamp) -> cdi.Spec:
    """Return the spec with its stamp as annotations; it needs CDI 0.6.0 then."""
    return dataclasses.replace(spec, annotations={**spec.annotations, **_document(stamp)})


def emit_stamp(stamp: Stamp, data: bytes) -> bytes:
    """Return the file to lie beside a spec of these bytes."""
    document = {"sha256": hashlib.sha256(data).hexdigest(), **_document(stamp)}
    return json.dumps(document, indent=2).encode() + b"\n"


def find(annotations: Mapping[str, str], data: bytes, mark: bytes | None) -> Stamp | None:
    """Return the stamp of a spec; None: it has none, or one of other bytes.

    Args: annotations: of the spec.   data: the spec file.   mark: the stamp's file; None: there is none.
    """
    if f"{_PREFIX}{_KEYS['boot_id']}" in annotations:
        return _stamp(annotations)
    if mark is None:
        return None
    try:
        document = json.loads(mark)
    except ValueError:
        return None
    if not isinstance(document, dict) or document.get("sha256") != hashlib.sha256(data).hexdigest():
        return None
    return _stamp({key: value for key, value in document.items() if isinstance(value, str)})


def beside(path: Path) -> Path:
    """Return where the stamp of a spec file lies."""
    return path.with_name(f"{path.name}{SUFFIX}")


def read(path: Path, annotations: Mapping[str, str]) -> Stamp | None:
    """Return the stamp of a spec file, from its annotations or from beside it; None: none, or of other bytes."""
    with contextlib.suppress(OSError):
        mark = beside(path).read_bytes()
        return find(annotations, path.read_bytes(), mark)
    return find(annotations, b"", None)


def _document(stamp: Stamp) -> dict[str, str]:
    found = {f"{_PREFIX}{key}": getattr(stamp, name) for name, key in _KEYS.items()}
    found[_GPUS] = ",".join(f"{node}={arch}/{brand}" for node, (arch, brand) in stamp.gpus.items())
    return {key: value for key, value in found.items() if value}


def _stamp(found: Mapping[str, str]) -> Stamp:
    texts = {name: found.get(f"{_PREFIX}{key}", "") for name, key in _KEYS.items()}
    parts = [item.partition("=") for item in found.get(_GPUS, "").split(",") if item]
    return Stamp(**texts, gpus={node: (pair.partition("/")[0], pair.partition("/")[2]) for node, _, pair in parts})
