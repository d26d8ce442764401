"""Renews what the runtime shim keeps between containers: JSON copies of YAML specs, and its cache.

The shim reads JSON alone and starts fastest with specs that were taken apart beforehand (`inject.cachewriter`). Both
are made here, where a YAML reader is at hand. A machine without the shim has nothing to renew.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.inject import cachewriter, policy, yamlcache
from fairlead_cdi import directory
from fairlead_cdi import errors as cdi_errors

_TRIES: Final = 4
_PAUSE_S: Final = 0.06
"""Times the tries: longer than a file must have been left alone before its times prove anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What was made."""

    conversions: int
    cache: str
    """Path of the cache; empty: it could not be written now, and the shim takes its long way."""


def folders(config: Path) -> tuple[str, ...]:
    """Return the folders of specs that the shim reads; none where this machine does not use it.

    It is in use where an operator's file or files kept by the shim exist.
    Raises: Invalid: the operator's file cannot be used.
    """
    chosen = _load(config)
    is_used = config.exists() or Path(chosen.cache).exists() or Path(chosen.yaml_cache).exists()
    return chosen.spec_dirs if is_used else ()


def _load(config: Path) -> policy.Settings:
    try:
        return policy.load(str(config))
    except policy.PolicyError as error:
        raise errors.Invalid(f"{config}: {error}", reason="PolicyInvalid", path=str(config)) from error


def renew(config: Path) -> Renewed:
    """Convert the YAML specs in the shim's folders and prepare all specs there; idempotent.

    Raises: Invalid: the operator's file cannot be used.   Unavailable: the folder of conversions refuses.
    """
    chosen = _load(config)
    count = yamlcache.keep(Path(chosen.yaml_cache), _documents(chosen)) if chosen.yaml_cache else 0
    for _ in range(_TRIES if chosen.cache else 0):
        if cachewriter.write(chosen.spec_dirs, chosen.cache, decoders=directory.DECODERS):
            return Renewed(conversions=count, cache=chosen.cache)
        time.sleep(_PAUSE_S)  # a spec written a moment ago
    return Renewed(conversions=count, cache="")


def _documents(chosen: policy.Settings) -> list[tuple[bytes, object]]:
    """Return the YAML specs of the shim's folders that can be decoded, each with what it says."""
    found = []
    for file in directory.scan(chosen.spec_dirs).files:
        if file.path.endswith(".yaml"):
            with contextlib.suppress(OSError, cdi_errors.DocumentError):
                data = Path(file.path).read_bytes()
                found.append((data, directory.DECODERS[".yaml"](data)))
    return found
