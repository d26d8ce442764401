"""Values of Secrets at rest: encrypted, opened only as what they were sealed as, and never without the key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.store.sealing import Seal
from fairlead.wire.kubernetes import core, meta


def _secret(data: dict[str, str], name: str = "db", namespace: str = "red") -> core.Secret:
    return core.Secret(metadata=meta.ObjectMeta(name=name, namespace=namespace), data=data)


def test_what_is_sealed_is_opened_by_the_key_of_a_file_that_root_alone_reads(tmp_path: Path) -> None:
    seal = Seal(tmp_path / "state" / "key")
    data = seal.sealed({"password": b"rosebud"}, "db", "red")
    assert b"rosebud" not in base64.b64decode(data["password"])
    assert (tmp_path / "state" / "key").stat().st_mode & 0o777 == 0o600
    assert Seal(tmp_path / "state" / "key").opened(_secret(data)) == {"password": b"rosebud"}
    assert data != seal.sealed({"password": b"rosebud"}, "db", "red")


@pytest.mark.parametrize(("name", "namespace", "key"), [("x", "red", "p"), ("db", "blue", "p"), ("db", "red", "q")])
def test_a_value_that_was_moved_is_not_opened(tmp_path: Path, name: str, namespace: str, key: str) -> None:
    seal = Seal(tmp_path / "key")
    data = seal.sealed({"p": b"rosebud"}, "db", "red")
    with pytest.raises(errors.ProtocolError) as refused:
        seal.opened(_secret({key: data["p"]}, name, namespace))
    assert refused.value.reason == "SecretUnreadable"


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_key_that_is_lost_or_damaged_is_named_and_left_as_it_is(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "key"
    data = Seal(path).sealed({"p": b"rosebud"}, "db", "red")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(errors.ProtocolError, match=str(path)):
        Seal(path).opened(_secret(data))
    assert (path.read_bytes() if path.exists() else None) == damage
