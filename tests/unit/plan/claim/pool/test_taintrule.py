"""Rules of administrators: which devices they taint."""

from __future__ import annotations

from fairlead.plan.claim.pool import taintrule
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec

_OWN = DeviceTaint(key="own", effect="NoSchedule")


def _slice(driver: str, pool: str) -> ResourceSlice:
    devices = (Device(name="a", taints=(_OWN,)), Device(name="b"))
    return ResourceSlice(spec=ResourceSliceSpec(driver=driver, pool=ResourcePool(name=pool), devices=devices))


def _rule(name: str, chosen: DeviceTaintSelector | None) -> DeviceTaintRule:
    taint = DeviceTaint(key=name, effect="NoExecute")
    return DeviceTaintRule(
        metadata=ObjectMeta(name=name), spec=DeviceTaintRuleSpec(device_selector=chosen, taint=taint)
    )


def _keys(slices: tuple[ResourceSlice, ...]) -> list[str]:
    return [",".join(taint.key for taint in one.taints) for each in slices for one in each.spec.devices]


def test_each_field_that_is_set_narrows_a_rule_and_own_taints_stay_first() -> None:
    slices = (_slice("d", "p"), _slice("d", "q"), _slice("e", "p"))
    for chosen, keys in (
        (DeviceTaintSelector(), ["own,r", "r"] * 3),
        (DeviceTaintSelector(driver="d"), ["own,r", "r", "own,r", "r", "own", ""]),
        (DeviceTaintSelector(pool="p"), ["own,r", "r", "own", "", "own,r", "r"]),
        (DeviceTaintSelector(device="b"), ["own", "r"] * 3),
        (DeviceTaintSelector(driver="d", pool="q", device="a"), ["own", "", "own,r", "", "own", ""]),
    ):
        assert _keys(taintrule.tainted(slices, [_rule("r", chosen)])) == keys


def test_a_rule_without_a_selector_taints_nothing_and_slices_stay_the_same_objects() -> None:
    one, other = _slice("d", "p"), _slice("e", "q")
    assert taintrule.tainted([one], [_rule("r", None)]) == (one,)
    found = taintrule.tainted([one, other], [_rule("r", DeviceTaintSelector(driver="d"))])
    assert found[1] is other
