"""The domain of a Service VM, as `fairlead fabric vm --libvirt` prints it, against libvirt's own schema."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fairlead.plan.fabric import servicevm

LIBVIRT = Path.home() / ".cache/fairlead/debian/libvirt"
_SCHEMA = LIBVIRT / "usr/share/libvirt/schemas/domain.rng"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _SCHEMA.is_file(), reason="needs libvirt's schema (tests/system/setup.sh)"),
]
VM = servicevm.ServiceVM(name="fm", functions=("0000:40:00.0", "0000:40:00.1", "10001:41:1f.7"), switches=2)


def check(xml: str) -> tuple[int, str]:
    """Hold a domain against the schema; returns the code and the words of xmllint."""
    program, schema = LIBVIRT / "usr/bin/xmllint", _SCHEMA
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(LIBVIRT / "usr/lib/x86_64-linux-gnu")}  # noqa: TID251
    line = (program, "--noout", "--nonet", "--relaxng", schema, "-")
    done = subprocess.run(line, input=xml, env=libraries, capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stderr


def test_the_printed_domain_is_one_by_libvirts_schema() -> None:
    xml = servicevm.domain(VM, disk='/var/lib/<fm>&".qcow2', cid=3)
    assert check(xml) == (0, "- validates\n")
    code, said = check(xml.replace('managed="no"', 'managed="perhaps"'))
    assert (code, "fails to validate" in said) == (3, True)
