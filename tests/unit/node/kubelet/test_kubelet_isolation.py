"""A container is not started with less than its tenancy demands by now."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.node.kubelet import runtime
from fairlead.wire.fairlead.tenancy import Tenancy, TenancySpec
from fairlead.wire.kubernetes import core, meta


def pod(runtime_class: str) -> core.Pod:
    item = core.Container(name="main", image="x")
    return core.Pod(spec=core.PodSpec(containers=(item,), runtime_class_name=runtime_class))


def red(isolation: str) -> Tenancy:
    return Tenancy(metadata=meta.ObjectMeta(name="red"), spec=TenancySpec(isolation=isolation))


@pytest.mark.parametrize(
    ("runtime_class", "tenancy"), [("", None), ("", red("")), ("gvisor", red("")), ("gvisor", red("gvisor"))]
)
def test_what_a_tenancy_demands_or_leaves_open_is_started(runtime_class: str, tenancy: Tenancy | None) -> None:
    runtime._check_isolation(pod(runtime_class), tenancy)


@pytest.mark.parametrize(("runtime_class", "tenancy"), [("", red("gvisor")), ("gvisor", red("none")), ("", red("vm"))])
def test_one_that_was_accepted_before_is_refused(runtime_class: str, tenancy: Tenancy) -> None:
    with pytest.raises(errors.Denied) as caught:
        runtime._check_isolation(pod(runtime_class), tenancy)
    assert caught.value.reason == "IsolationBound"
