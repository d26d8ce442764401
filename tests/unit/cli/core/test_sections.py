"""Help in sections: the short one has what people use, `--help all` everything."""

from __future__ import annotations

import click
import click.testing
import pytest

from fairlead.cli import main, verbs
from fairlead.cli.container.start import runhelp
from fairlead.cli.core import lazygroup, sections

_SECTIONED = ("run", "up", "agent", "scheduler", "controller", "api")


def _help(*argv: str) -> str:
    return click.testing.CliRunner().invoke(main.root, argv, prog_name="fairlead", obj={}).output


def _options(name: str) -> list[click.Option]:
    command = lazygroup.load(verbs.VERBS[name].target)
    return [one for one in command.params if isinstance(one, click.Option)]


@pytest.mark.parametrize("name", _SECTIONED)
def test_the_short_help_fits_a_page_and_says_how_to_see_the_rest(name: str) -> None:
    short, whole = _help(name, "--help"), _help(name, "--help", "all")
    assert f"more options: fairlead {name} --help all" in short
    assert len(short.splitlines()) < 80
    for option in _options(name):
        if not option.hidden:
            assert max(option.opts, key=len) in whole, option.name
    assert "more options" not in whole


@pytest.mark.parametrize("name", _SECTIONED)
def test_options_of_the_short_help_are_options_of_the_verb(name: str) -> None:
    command = lazygroup.load(verbs.VERBS[name].target)
    assert isinstance(command, sections.SectionedCommand | sections.SectionedGroup)
    assert command.common <= {one.name for one in command.params}


def test_every_option_of_run_has_a_section() -> None:
    placed = [name for names in runhelp.SECTIONS.values() for name in names]
    assert sorted(placed) == sorted(str(one.name) for one in _options("run"))


def test_a_word_all_that_is_not_asked_of_help_stays_what_it_is() -> None:
    assert "more options" in _help("run", "--help")
    assert "more options" in _help("up", "-h")
    assert "Settings state.*" in _help("up", "-h", "all")
    assert "more options" in _help("run", "--dry-run", "-g", "all", "--help")
