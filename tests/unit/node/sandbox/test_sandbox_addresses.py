"""Addresses of a pod on gVisor outlive the moment in which the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel.network import address
from fairlead.node.sandbox import addresses


def test_they_are_kept_once_and_stay_where_gvisor_has_taken_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ["10.88.0.2"]
    monkeypatch.setattr(address, "of_process", lambda _pid: tuple(shown))
    folder = tmp_path / "pod"
    assert addresses.read(folder) == ()
    addresses.keep(folder, 7)
    assert addresses.read(folder) == ("10.88.0.2",)
    shown.clear()
    addresses.keep(folder, 7)
    assert addresses.read(folder) == ("10.88.0.2",)
    shown.append("10.88.0.9")  # another sandbox
    addresses.keep(folder, 8)
    assert addresses.read(folder) == ("10.88.0.9",)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "pod").touch()
    with pytest.raises(errors.Unavailable, match="cannot be kept") as caught:
        addresses.keep(tmp_path / "pod", 1)
    assert caught.value.reason == "AddressesUnkept"
    (tmp_path / "addresses.json").write_text("{")
    assert addresses.read(tmp_path) == ()
