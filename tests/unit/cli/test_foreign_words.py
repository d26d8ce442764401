from __future__ import annotations

import click
import pytest

from fairlead.cli import foreign, main, verbs
from fairlead.cli.core import lazygroup
from tests.unit.cli.conftest import fairlead


@pytest.mark.parametrize("verb", foreign.words().verbs)
def test_a_verb_of_another_program_is_answered_with_ours(verb: str) -> None:
    result = fairlead(verb, "x")
    assert result.exit_code == 2
    assert f"  hint: {foreign.words().verbs[verb]}" in result.stderr
    assert "Did you mean" not in result.stderr


def test_the_commonest_verbs_of_other_programs_are_known() -> None:
    of_docker = {"build", "create", "images", "info", "inspect", "kill", "network", "pause", "port", "push"}
    more = {"rename", "restart", "rmi", "search", "start", "system", "tag", "update", "version", "volume"}
    of_kubectl = {"apply", "config", "cordon", "create", "delete", "describe", "drain", "edit", "get", "label", "scale"}
    of_slurm = {"sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "sprio", "squeue", "srun", "sstat"}
    of_gpus = {"dcgmi", "gpustat", "metrics", "mig-parted", "nvidia-ctk", "nvidia-smi", "nvitop", "nvtop", "top"}
    of_people = {"console", "dashboard", "install", "notebook", "shell", "ssh", "upgrade", "whoami"}
    every = of_docker | more | of_kubectl | of_slurm | of_gpus | of_people
    assert every <= foreign.words().verbs.keys() | verbs.VERBS.keys()


def test_every_line_that_is_offered_instead_begins_with_a_verb_that_is_there() -> None:
    for verb, words in foreign.words().verbs.items():
        assert verb not in verbs.VERBS
        for line in words.replace(";", ",").split("fairlead ")[1:]:
            name = line.split()[0].strip(",:;")
            assert name in verbs.VERBS or name.startswith("--") or name == "VERB", (verb, line)


@pytest.mark.parametrize(("typed", "meant"), [("rn", "run"), ("lgos", "logs"), ("statsu", "status"), ("exce", "exec")])
def test_a_slip_of_the_pen_is_answered_with_what_is_spelled_alike(typed: str, meant: str) -> None:
    result = fairlead(typed)
    assert result.exit_code == 2
    assert f"'{meant}'" in result.stderr


def test_a_verb_of_which_nothing_is_known_is_only_refused() -> None:
    result = fairlead("zzzzzz")
    assert (result.exit_code, "hint" in result.stderr) == (2, False)


@pytest.mark.parametrize(
    ("verb", "option"), [(verb, option) for verb, table in foreign.words().options.items() for option in table]
)
def test_an_option_of_another_program_is_answered_with_ours(verb: str, option: str) -> None:
    command = lazygroup.load(verbs.VERBS[verb].target)
    own = {name for param in command.params if isinstance(param, click.Option) for name in param.opts}
    assert option not in own
    result = fairlead(verb, option, "x", "y")
    assert result.exit_code == 2
    assert f"  hint: {foreign.words().options[verb][option]}" in result.stderr


@pytest.mark.parametrize("alias", ["images", "rmi"])
def test_docker_s_names_of_image_verbs_work(alias: str) -> None:
    command = main.root.get_command(click.Context(main.root), alias)
    assert command is not None
    assert verbs.VERBS[alias].is_hidden


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (("queue", "list"), "fairlead queue ls"),
        (("volume", "list"), "fairlead volume ls"),
        (("tenancy", "ls"), "fairlead tenancy list"),
        (("tenancy", "rm"), "fairlead tenancy delete"),
        (("quota", "delete"), "fairlead quota rm"),
        (("user", "add"), "fairlead user create"),
        (("tenancy", "describe"), "fairlead tenancy show"),
    ],
)
def test_another_word_for_a_group_s_verb_is_answered_with_its_own(line: tuple[str, ...], meant: str) -> None:
    result = fairlead(*line)
    assert result.exit_code == 2
    assert f"  hint: {meant}" in result.stderr
