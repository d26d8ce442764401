"""Templates of sessions: what a file may say, and the token that a first process is given."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.serve.admission import sessiontemplate

_PAGE = """
[page]
image = "demo"
command = ["sh", "-c", "echo $PAGE_TOKEN $1", "page", "word"]
home = "/home/me"
port = 8000
path = "/?token={token}"
token = "PAGE_TOKEN"
"""


def test_a_file_adds_templates_and_replaces_built_in_ones(tmp_path: Path) -> None:
    file = tmp_path / "templates.toml"
    file.write_text(_PAGE + _PAGE.replace("[page]", "[shell]"))
    found = {one.name: one for one in sessiontemplate.read(file)}
    assert sorted(found) == ["notebook", "page", "shell"]
    assert (found["shell"].image, found["page"].token) == ("demo", "PAGE_TOKEN")
    assert [one.name for one in sessiontemplate.read(None)] == ["notebook", "shell"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[page]", "[page", "is not TOML"),
        ("[page]", '["../x"]', "which is no name"),
        ('home = "/home/me"', 'home = "home"', "is no folder from / on"),
        ('home = "/home/me"', 'home = "/"', "is no folder from / on"),
        ("port = 8000", "port = 80000", "no template"),
        ("port = 8000", "prot = 8000", "no template"),
        ('path = "/', 'path = "', "does not begin with /"),
        ("PAGE_TOKEN", "X; rm -rf", "is no variable"),
        ('image = "demo"', 'image = ""', "without an image"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "templates.toml"
    file.write_text(_PAGE.replace(old, new))
    with pytest.raises(errors.Invalid, match=r"templates\.toml") as refused:
        sessiontemplate.read(file)
    assert said in refused.value.message
    with pytest.raises(errors.Unavailable, match="cannot read"):
        sessiontemplate.read(tmp_path / "none")


def test_the_token_is_made_once_and_its_user_alone_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "templates.toml"
    file.write_text(_PAGE.replace("/home/me", str(tmp_path / "home")))
    made = next(one for one in sessiontemplate.read(file) if one.name == "page")
    argv = sessiontemplate.start_of(made)
    said = [subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    token = (tmp_path / "home/.fairlead/token").read_text()
    assert said == [[token, "word"], [token, "word"]]
    assert (len(token), token.isalnum()) == (48, True)
    assert (tmp_path / "home/.fairlead/token").stat().st_mode & 0o777 == 0o600
    shell = next(one for one in sessiontemplate.read(None) if one.name == "shell")
    assert sessiontemplate.start_of(shell) == shell.command


async def test_templates_are_listed(door: httpx.AsyncClient) -> None:
    found = (await door.get("/v1/templates")).json()["items"]
    assert [(one["name"], one["port"]) for one in found] == [("notebook", 8888), ("shell", 0)]
