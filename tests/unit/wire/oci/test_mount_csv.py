"""Tegra's lists: what a line says, and which lines are none."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.wire.oci import mountcsv


def test_each_kind_of_line_is_read_in_order() -> None:
    text = b"# a comment\n\ndev, /dev/nvmap\n lib ,/usr/lib/libx.so\nsym,/usr/lib/liby.so.1\ndir, /lib/firmware\n"
    kinds = mountcsv.Kind
    assert mountcsv.parse_mount_csv(text) == (
        (kinds.DEVICE, "/dev/nvmap"),
        (kinds.LIBRARY, "/usr/lib/libx.so"),
        (kinds.SYMLINK, "/usr/lib/liby.so.1"),
        (kinds.FOLDER, "/lib/firmware"),
    )


@pytest.mark.parametrize("line", [b"dev", b"dev,", b"dev, nvmap", b"file, /x", b"lib, /a/../b", b"lib, /a/.."])
def test_any_other_line_is_told_with_its_number(line: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match="line 2"):
        mountcsv.parse_mount_csv(b"dev, /dev/x\n" + line)
