"""Fuzz target of the CDI reader: whatever the bytes, it reads or refuses, and what it reads it can say and use again.

Run by atheris as a process of its own, since it instruments what it imports:

    python tests/fuzz/cdi_reader.py CORPUS -max_total_time=20

A finding is left as `crash-…` in the working folder; it belongs into `REGRESSIONS` of
`tests/unit/fairlead_cdi/parse/test_cdi_regressions.py` once it is mended.
"""

from __future__ import annotations

import contextlib
import sys

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # ships no types, no build elsewhere

with atheris.instrument_imports(include=["fairlead.wire", "fairlead_cdi"]):
    from fairlead.errors import ProtocolError
    from fairlead.wire.cdi import stamp
    from fairlead.wire.oci import mountcsv
    from fairlead_cdi import emit, errors, inject, lint, parse, yamlfile
    from fairlead_cdi import spec as cdi
    from fairlead_cdi.host import node


def check(data: bytes) -> None:
    """Read bytes as every format; anything but a refusal is a finding."""
    for decode in (parse.decode_json, yamlfile.decode_yaml):
        with contextlib.suppress(errors.DocumentError):
            use(data, decode)
    with contextlib.suppress(ProtocolError):
        mountcsv.parse_mount_csv(data)
    stamp.find({}, data, data)


def use(data: bytes, decode: parse.Decoder) -> None:
    """Read a spec, say it again, judge it, inject each of its devices."""
    spec = parse.parse_spec(data, decode=decode)
    if parse.build_spec(emit.as_document(spec)) != spec:
        raise AssertionError("what was read is not what is said again")
    lint.lint(spec)
    with contextlib.suppress(errors.DocumentError):
        emit.emit_json(spec)
    file = cdi.SpecFile(path="/x.json", priority=0, spec=spec)
    for device in spec.devices:
        found = cdi.Resolved(name=f"{spec.kind}={device.name}", device=device, file=file)
        with contextlib.suppress(errors.CDIError):
            once = inject.inject({}, [found], stat=_node)
            if inject.inject(once, [found], stat=_node) != once:
                raise AssertionError("injecting twice is not injecting once")


def _node(path: str) -> node.HostNode | None:
    return node.HostNode("c", 1, 3, 0o666) if path.startswith("/dev/") else None


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
