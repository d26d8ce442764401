from __future__ import annotations

from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.core.terminal import gotemplate

ITEM: dict[str, Any] = {
    "Name": "web",
    "State": {"Running": True, "ExitCode": 0},
    "Labels": {"team": "red"},
    "Ports": ["80/tcp", "81/tcp"],
    "None": None,
}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{.Name}}", "web"),
        ("{{ .Name }}={{.State.ExitCode}}", "web=0"),
        ("{{.State.Running}}", "true"),
        ("{{json .State}}", '{"Running":true,"ExitCode":0}'),
        ("{{.State | json}}", '{"Running":true,"ExitCode":0}'),
        ('{{index .Labels "team"}}', "red"),
        ('{{index .Labels "nosuch"}}', ""),
        ('{{join .Ports ","}}', "80/tcp,81/tcp"),
        ("{{len .Ports}}", "2"),
        ("{{upper .Name}}", "WEB"),
        ("{{.None}}", ""),
        ("no field", "no field"),
    ],
)
def test_a_field_is_filled_as_go_fills_it(template: str, filled: str) -> None:
    assert gotemplate.fill(template, ITEM) == filled


@pytest.mark.parametrize("template", ["{{.Nosuch}}", "{{.Name.First}}", "{{range .Ports}}", "{{shout .Name}}", "{{}}"])
def test_what_is_not_there_is_refused_with_what_is(template: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        gotemplate.fill(template, ITEM)
    assert caught.value.reason == "TemplateInvalid"
    assert caught.value.hint


def test_a_table_has_titles_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    gotemplate.show([ITEM], r"table {{.Name}}\t{{.State.ExitCode}}")
    assert capsys.readouterr().out.splitlines() == ["NAME   EXITCODE", "web    0"]


def test_an_escape_sequence_in_a_value_is_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    gotemplate.show([{"Name": "a\x1b]0;owned\x07"}], "{{.Name}}")
    assert "\x1b" not in capsys.readouterr().out
