"""Health rules from settings and the configuration file: who wins, what is wrong, and what becomes of waiting GPUs."""

from __future__ import annotations

import pytest

from fairlead import errors, settings
from fairlead.model.gpu import Action, EventKind, GPUEvent, GPUHealth, Inventory
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory.health import HealthTracker
from fairlead.plan.gpu import health, healthpolicy, nodeconfig
from fairlead.wire.nvidia import pluginreader
from tests import gpus


def chosen(**values: str) -> settings.Settings:
    return settings.load(flags={f"health.{name}": value for name, value in values.items()}, env={}, file=None)


def finds(policy: health.Policy, xid: int) -> bool:
    event = GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-0"), xid=xid)
    return health.find_in_event(event, policy) is not None


@pytest.mark.parametrize(
    ("values", "out", "spared"),
    [
        ({}, (79, 48, 109, 777), (13, 31, 43, 45, 68, 94)),
        ({"ignored_xids": "109, 79"}, (48,), (109, 79, 13)),
        ({"ignored_xids": "all"}, (), (79, 48, 777)),
        ({"ignored_xids": "xids"}, (), (79, 48)),
        ({"heeded_xids": "13,94"}, (13, 94, 79), (31,)),
        ({"heeded_xids": "all"}, (13, 79, 777), ()),
        ({"ignored_xids": "all", "heeded_xids": "79"}, (79,), (48, 13)),
        ({"ignored_xids": "79", "heeded_xids": "79"}, (79,), ()),
        ({"xids": "94=reset,79=ignore"}, (94,), (79,)),
    ],
)
def test_settings_say_which_xids_take_a_gpu_out(
    values: dict[str, str], out: tuple[int, ...], spared: tuple[int, ...]
) -> None:
    policy = healthpolicy.plan_policy(chosen(**values), {})
    assert all(finds(policy, xid) for xid in out)
    assert not any(finds(policy, xid) for xid in spared)


def test_a_flag_wins_over_the_file_and_the_file_over_defaults() -> None:
    of_file = {94: "reset", 79: "ignore"}
    assert healthpolicy.plan_policy(settings.Settings(), of_file).xids == {94: Action.RESET, 79: Action.IGNORE}
    policy = healthpolicy.plan_policy(chosen(xids="94=application"), of_file)
    assert policy.xids == {94: Action.APP, 79: Action.IGNORE}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"xids": "94"}, '"94"'),
        ({"xids": "94=explode"}, "94=explode"),
        ({"xids": "x=reset"}, '"x"'),
        ({"ignored_xids": "79;80"}, "79;80"),
        ({"heeded_xids": "99999"}, "99999"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, str], named: str) -> None:
    with pytest.raises(errors.Invalid, match=named):
        healthpolicy.plan_policy(chosen(**values), {})


def test_the_configuration_file_carries_actions_by_xid() -> None:
    document = pluginreader.parse("fairlead: {health: {xids: {94: reset, 79: ignore}}}", source="f")
    policy = nodeconfig.plan_config(settings.Settings(), document).health
    assert (finds(policy, 94), finds(policy, 79)) == (True, False)


def test_wrong_actions_of_the_file_are_named_by_their_path() -> None:
    _, problems = pluginreader.read("fairlead: {health: {xids: {94: explode, abc: reset}, hot: 3}}")
    text = "; ".join(problems)
    assert "fairlead.health.xids.94" in text
    assert "abc" in text
    assert "fairlead.health.hot" in text


def test_a_gpu_that_waits_for_a_reset_comes_back_where_the_rules_spare_its_xid_and_no_other_does() -> None:
    tracker = HealthTracker()
    tracker.observe_inventory(Inventory(gpus=(gpus.gpu(0), gpus.gpu(1))), now=0)
    for gpu, xid in (("GPU-0", 94), ("GPU-1", 48)):
        policy = health.Policy(xids={94: Action.RESET})
        tracker.judge_by(policy, now=0)
        tracker.observe_event(GPUEvent(kind=EventKind.XID, uuid=GPUUUID(gpu), xid=xid), now=1)
    assert {uuid for uuid, one in tracker.verdicts().items() if one.is_latched} == {"GPU-0", "GPU-1"}
    tracker.judge_by(health.DEFAULT, now=2)
    verdicts = tracker.verdicts()
    assert verdicts[GPUUUID("GPU-0")].state is health.State.RECOVERING
    assert verdicts[GPUUUID("GPU-1")].state is health.State.FAULTY


@pytest.mark.parametrize("action", [5, 6, 7])
def test_every_recovery_action_of_the_driver_takes_the_gpu_out(action: int) -> None:
    found = health.find_in_reading(gpus.gpu(0, health=GPUHealth(recovery_action=action)))
    assert found is not None
    assert found.reason != "RecoveryRequired"
