"""Registry credentials in podman's format: read back as written, refused where no registry takes them, in no text."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.wire.oci import registryauth
from fairlead.wire.oci.registryauth import Login

LOGIN = Login(username="red", password="rose:bud ü")


def test_what_was_written_is_read() -> None:
    logins = {"registry.example:5000/team": LOGIN}
    assert registryauth.parse(registryauth.emit(logins)) == logins
    assert registryauth.parse(b"{}") == {}


def test_a_password_is_in_no_text_of_a_login() -> None:
    assert "rose" not in repr(LOGIN)


@pytest.mark.parametrize("data", [b"[", b'{"auths":{"x":{"auth":"?"}}}', b'{"auths":{"x":{"auth":"/w=="}}}'])
def test_a_damaged_file_is_refused_without_its_content(data: bytes) -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        registryauth.parse(data)
    assert "x" not in caught.value.message.split()


@pytest.mark.parametrize(
    ("registry", "username", "password"),
    [
        ("-v", "red", "p"),
        ("https://registry.example", "red", "p"),
        ("registry.example/../x", "red", "p"),
        ("Registry.example", "red", "p"),
        ("", "red", "p"),
        ("r" * 300, "red", "p"),
        ("registry.example", "", "p"),
        ("registry.example", "a:b", "p"),
        ("registry.example", "a\n", "p"),
        ("registry.example", "red", ""),
        ("registry.example", "red", "hunter2\n"),
        ("registry.example", "red", "hunter2" * 5000),
    ],
)
def test_what_no_registry_takes_is_refused_and_the_password_is_not_said(
    registry: str, username: str, password: str
) -> None:
    with pytest.raises(errors.Invalid) as caught:
        registryauth.check(registry, Login(username=username, password=password))
    assert "hunter2" not in str(caught.value)
