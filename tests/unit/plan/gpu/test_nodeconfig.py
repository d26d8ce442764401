"""What is in force on a node: flags and variables over the file over our settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.plan.gpu import nodeconfig
from fairlead.plan.gpu.allocation import answer, companion
from fairlead.wire.nvidia import pluginreader


def loaded(flags: dict[str, object] | None = None, env: dict[str, str] | None = None) -> settings.Settings:
    return settings.load(flags=flags or {}, env=env or {}, file=None)


FILE = pluginreader.parse(
    """
flags:
  migStrategy: mixed
  nvidiaDriverRoot: /driver
  gdsEnabled: true
  mofedEnabled: false
  plugin: {deviceListStrategy: envvar, passDeviceSpecs: true, sharedDevicesAllocationPolicy: packed}
""",
    source="f",
)


def test_a_file_is_in_force_over_the_defaults() -> None:
    found = nodeconfig.plan_config(loaded(), FILE, name="f")
    assert found.allocate == answer.AllocateOptions(
        strategies=frozenset({answer.Strategy.ENVVAR}),
        passes_device_specs=True,
        beside=companion.Wanted(modes=("gds",)),
    )
    assert (found.mig_strategy, found.packs_replicas, found.name) == ("mixed", True, "f")


def test_a_variable_wins_over_the_file_and_a_flag_over_both() -> None:
    env = {"FAIRLEAD_NODE_MIG_STRATEGY": "single", "FAIRLEAD_PLUGIN_SHARING_POLICY": "distributed"}
    found = nodeconfig.plan_config(loaded({"node.mig_strategy": "none"}, env), FILE)
    assert (found.mig_strategy, found.packs_replicas) == ("none", False)


def test_a_flag_that_says_the_default_still_wins_over_the_file() -> None:
    assert nodeconfig.plan_config(loaded({"node.mig_strategy": "none"}), FILE).mig_strategy == "none"


def test_settings_made_anew_remember_what_was_given() -> None:
    chosen = settings.override(loaded({"node.mig_strategy": "none"}), {"node.name": "n"})
    assert nodeconfig.plan_config(chosen, FILE).mig_strategy == "none"


def test_where_the_driver_is_comes_from_the_file_at_the_start_only() -> None:
    assert nodeconfig.apply_at_start(loaded(), FILE).silicon.driver_root == Path("/driver")
    assert nodeconfig.apply_at_start(loaded({"silicon.driver_root": "/x"}), FILE).silicon.driver_root == Path("/x")
    assert nodeconfig.apply_at_start(loaded(), FILE).node.mig_strategy == "none"


def test_the_file_says_what_containers_get_beside_their_gpus() -> None:
    assert nodeconfig.plan_config(loaded(), FILE).allocate.beside == companion.Wanted(modes=("gds",))
    with_channel = pluginreader.parse("version: v1\nimex: {channelIDs: [0], required: true}\n", source="f")
    beside = nodeconfig.plan_config(loaded(), with_channel).allocate.beside
    assert beside == companion.Wanted(channels=(0,), requires_channels=True)
    flags: dict[str, object] = {"plugin.imex_channels": "", "plugin.imex_required": "false", "plugin.gds": "true"}
    chosen = nodeconfig.plan_config(loaded(flags), with_channel).allocate.beside
    assert chosen == companion.Wanted(modes=("gds",))


def test_a_channel_that_cannot_be_is_named() -> None:
    assert nodeconfig.parse_channels(" 0, 3,0") == (0, 3)
    for text in ("x", "0,2048", "-1", "\u0663", "9" * 5000):
        with pytest.raises(errors.Invalid, match="IMEX channel"):
            nodeconfig.parse_channels(text)


def choose(names: set[str], *, wanted: str = "", default: str = "", fallbacks: tuple[str, ...] = ()) -> str:
    return nodeconfig.choose_file(names, wanted=wanted, default=default, fallbacks=fallbacks)


def test_the_label_names_the_file_then_the_default_then_the_fallbacks() -> None:
    names = {"a", "b", "default"}
    assert choose(names, wanted="b", default="a", fallbacks=("named",)) == "b"
    assert choose(names, default="a", fallbacks=("named",)) == "a"
    assert choose(names, fallbacks=("single", "named")) == "default"
    assert choose({"only"}, fallbacks=("named", "single")) == "only"
    assert choose(names, fallbacks=("single", "empty")) == ""


@pytest.mark.parametrize("how", [{"wanted": "x"}, {"default": "x"}, {"fallbacks": ("single",)}, {}])
def test_a_file_that_is_not_there_is_an_error_with_those_that_are(how: dict[str, str]) -> None:
    with pytest.raises(errors.NotFound, match=r"there: a, b"):
        choose({"a", "b"}, **how)  # type: ignore[arg-type]


def test_an_unknown_fallback_is_an_error() -> None:
    with pytest.raises(errors.Invalid, match="newest"):
        choose({"a"}, wanted="a", fallbacks=("newest",))
