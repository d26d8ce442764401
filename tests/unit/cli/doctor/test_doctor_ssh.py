"""What doctor says of the SSH door."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from fairlead import settings
from fairlead.cli.doctor import sshdoor
from fairlead.serve.ssh import hostkey


def _settings(folder: Path, listen: str, api: str = "127.0.0.1:0") -> settings.Settings:
    given = {"state.folder": folder, "ssh.listen": listen, "api.listen": api}
    return settings.override(settings.Settings(), given)


def _said(seen: sshdoor.Facts) -> dict[str, str]:
    return {one.what: one.level for one in sshdoor.check(seen)}


def test_a_door_that_is_off_is_not_spoken_of(tmp_path: Path) -> None:
    assert _said(sshdoor.collect(_settings(tmp_path, ""), is_served=False)) == {}


def test_a_good_door_is_ok_and_a_key_that_others_may_read_fails(tmp_path: Path) -> None:
    asked = _settings(tmp_path, "0")
    hostkey.ensure(tmp_path)
    assert list(_said(sshdoor.collect(asked, is_served=False)).values()) == ["ok"]
    (tmp_path / hostkey.NAME).chmod(0o644)
    (found,) = sshdoor.check(sshdoor.collect(asked, is_served=True))
    assert (found.level, "others may read" in found.what, "644" in found.why) == ("fail", True, True)
    assert sshdoor.KEY == hostkey.NAME


def test_a_taken_port_and_missing_accounts_are_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        seen = sshdoor.collect(_settings(tmp_path, str(port), api=""), is_served=False)
    said = _said(seen)
    assert said["ssh.listen is set, and api.listen is not"] == "fail"
    if os.geteuid() == 0:
        assert any(f"cannot listen at 127.0.0.1:{port}" in what for what in said)


def test_a_missing_library_is_named() -> None:
    seen = sshdoor.Facts(listen="2222", has_library=False)
    assert _said(seen) == {"asyncssh is not installed": "fail"}
