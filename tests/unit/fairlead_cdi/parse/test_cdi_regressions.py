"""Bytes that once made the CDI reader fail, found by the fuzz target `tests/fuzz/cdi_reader.py`."""

from __future__ import annotations

import contextlib
import json

import pytest

from fairlead_cdi import directory, emit, errors, inject, parse
from fairlead_cdi import spec as cdi

_FIFO = {"path": "/duv/x", "type": "p"}
_NO_ACCESS = {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "permissions": "none"}
REGRESSIONS: dict[str, bytes] = {
    "a second injection of a fifo made an empty list of rules": json.dumps(
        {
            "cdiVersion": "1.1.0",
            "kind": "vendor.com/gpu",
            "devices": [{"name": "gpu0", "containerEdits": {"deviceNodes": [_FIFO]}}],
        }
    ).encode(),
    "a second injection of a node without access made an empty list of rules": json.dumps(
        {
            "cdiVersion": "1.1.0",
            "kind": "vendor.com/gpu",
            "devices": [{"name": "gpu0", "containerEdits": {"deviceNodes": [_NO_ACCESS]}}],
        }
    ).encode(),
}


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("suffix", directory.DECODERS)
def test_what_once_failed_is_read_or_refused(name: str, suffix: str) -> None:
    with contextlib.suppress(errors.DocumentError):
        spec = parse.parse_spec(REGRESSIONS[name], decode=directory.DECODERS[suffix])
        assert parse.build_spec(emit.as_document(spec)) == spec
        file = cdi.SpecFile(path="/x.json", priority=0, spec=spec)
        found = [cdi.Resolved(name=device.name, device=device, file=file) for device in spec.devices]
        once = inject.inject({}, found, stat=lambda _: None)
        assert inject.inject(once, found, stat=lambda _: None) == once
