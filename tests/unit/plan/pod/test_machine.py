"""What only one machine's engine can do: what of it is refused, in an API server's words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import machine
from fairlead.wire.kubernetes import core, meta

_PORT = [{"containerPort": 80, "hostPort": 8080}]


def _problems(*, ports: Any = (), **spec: Any) -> list[str]:
    document = {"containers": [{"name": "main", "image": "i", "ports": list(ports)}], **spec}
    return list(machine.problems(msgspec.convert(document, core.PodSpec)))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hostNetwork": True, "ports": _PORT}, "must match containerPort with hostNetwork"),
        ({"machine": {"user": "a b"}}, 'spec.machine.user: Invalid value: "a b"'),
        ({"machine": {"noNetwork": True}, "hostNetwork": True}, "may not be given beside hostNetwork"),
        ({"machine": {"noNetwork": True}, "ports": _PORT}, "leads into no container without a network"),
        ({"machine": {"ttlSecondsAfterFinished": -1}}, "spec.machine.ttlSecondsAfterFinished: Invalid value: -1"),
        ({"machine": {"ttlSecondsAfterFinished": 8 * 86400}}, "must be from 0 to 604800"),
        ({"machine": {"limits": [{"name": "luck", "soft": 1, "hard": 1}]}}, 'Unsupported value: "luck"'),
        ({"machine": {"limits": [{"name": "nofile", "soft": -2, "hard": 1}]}}, "must be -1 or a number of 63 bits"),
        ({"machine": {"limits": [{"name": "nofile", "soft": 2, "hard": 1}]}}, "the soft limit is above the hard one"),
        ({"machine": {"limits": [{"name": "nofile", "soft": -1, "hard": 1}]}}, "the soft limit is above the hard one"),
    ],
)
def test_what_cannot_be_is_refused_by_name(spec: dict[str, Any], words: str) -> None:
    (problem,) = _problems(**spec)
    assert words in problem


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hostNetwork": True, "ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81}]},
        {"machine": {"user": "nobody:1000", "noNetwork": True, "ttlSecondsAfterFinished": 0}},
        {"machine": {"limits": [{"name": "nofile", "soft": 1, "hard": -1}, {"name": "core", "soft": -1, "hard": -1}]}},
    ],
)
def test_what_an_engine_can_do_passes(spec: dict[str, Any]) -> None:
    assert _problems(**spec) == []


_HERE = machine.Here(node="box", scheduler="fairlead")


def _placed(finalizers: tuple[str, ...] = (), **spec: Any) -> core.Pod:
    item = core.Container(name="c", image="i")
    about = meta.ObjectMeta(name="p", finalizers=finalizers)
    return machine.placed(core.Pod(metadata=about, spec=core.PodSpec(containers=(item,), **spec)), _HERE)


@pytest.mark.parametrize("named", ["", "fairlead", "default-scheduler"])
def test_a_manifest_without_a_scheduler_of_its_own_is_placed_here(named: str) -> None:
    assert _placed(scheduler_name=named, node_name="box").spec.scheduler_name == "fairlead"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"node_name": "gpu-node-7"}, 'spec.nodeName "gpu-node-7" is not here: this machine is the node "box"'),
        ({"scheduler_name": "volcano"}, 'spec.schedulerName "volcano"'),
    ],
)
def test_what_nobody_here_would_take_up_is_refused_by_field(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.Invalid, match=words) as caught:
        _placed(**spec)
    assert "leave spec." in (caught.value.hint or "")


def test_finalizers_that_nobody_here_removes_are_left_out() -> None:
    assert _placed(finalizers=("batch.kubernetes.io/job-tracking",)).metadata.finalizers == ()
