"""Files of Secrets: what cannot be written is said of that file, and is no bug of the kubelet's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel.mounting import tmpfs
from fairlead.node.tenancy import secrets
from fairlead.plan.pod.values import secret


def test_files_that_lie_in_each_others_way_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that was stored by an older service may have them."""
    monkeypatch.setattr(tmpfs, "mount", lambda *_, **__: None)
    wanted = tuple(secret.File(path=path, data=b"rosebud", mode=None) for path in ("x", "x/y"))
    with pytest.raises(errors.Unavailable) as refused:
        secrets.write(tmp_path / "v", wanted, user=os.getuid(), first_id=0)
    assert ('"x/y"' in refused.value.message, "rosebud" in str(refused.value)) == (True, False)
