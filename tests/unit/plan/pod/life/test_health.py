"""Counting of probes' results, and the judgement of probes and hooks before a pod is stored."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.plan.pod.life import health, judge
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import Probe


def test_numbers_that_are_not_given_are_kubernetes_own() -> None:
    found = health.limits(Probe())
    assert (found.delay_s, found.timeout_s, found.period_s, found.successes, found.failures) == (0, 1, 10, 1, 3)


def test_a_result_holds_after_as_many_in_a_row_as_the_probe_asks_for() -> None:
    given = health.limits(Probe(success_threshold=2, failure_threshold=3))
    count = health.Count(is_good=False)
    seen = []
    for result in (True, True, False, False, True, False, False, False):
        count = count.after(result, given)
        seen.append(count.is_good)
    assert seen == [False, True, True, True, True, True, True, False]


def test_a_container_that_only_has_a_liveness_probe_is_ready_at_once() -> None:
    item = core.Container(name="c", liveness_probe=Probe())
    assert health.at_first(item, None, "id") == health.Health()


def test_a_container_with_a_hook_has_not_started_before_it_ended() -> None:
    item = msgspec.convert({"name": "c", "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}, core.Container)
    assert health.at_first(item, None, "id").is_started is False


def _problems(item: dict[str, object], *, is_init: bool = False) -> list[str]:
    return list(
        judge.problems("c", msgspec.convert({"name": "c", **item}, core.Container), is_init=is_init, grace_s=30)
    )


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"livenessProbe": {}}, "c.livenessProbe: Required value: must specify exactly one handler type"),
        ({"livenessProbe": {"exec": {"command": ["a"]}, "grpc": {"port": 1}}}, "exactly one handler"),
        ({"livenessProbe": {"exec": {}}}, "c.livenessProbe.exec.command: Required value"),
        ({"livenessProbe": {"exec": {"command": ["a"]}, "successThreshold": 2}}, "successThreshold: Invalid value: 2"),
        ({"readinessProbe": {"grpc": {"port": 0}}}, "grpc.port: Invalid value: 0"),
        ({"readinessProbe": {"tcpSocket": {"port": "UPPER"}}}, "tcpSocket.port: Invalid value"),
        ({"readinessProbe": {"httpGet": {"port": 80, "host": "db.example"}}}, "only an IP address or localhost"),
        ({"readinessProbe": {"httpGet": {"port": 80, "path": "/a\r\nX: y"}}}, "httpGet.path: Invalid value"),
        ({"readinessProbe": {"httpGet": {"port": 80, "scheme": "FTP"}}}, "httpGet.scheme: Unsupported value"),
        (
            {"readinessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "a b", "value": "x"}]}}},
            "httpHeaders[0].name: Invalid value",
        ),
        (
            {"readinessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "x\r\ny: z"}]}}},
            "httpHeaders[0].value: Invalid value",
        ),
        ({"readinessProbe": {"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 3}}, "must not be set"),
        ({"livenessProbe": {"exec": {"command": ["a"]}, "periodSeconds": -1}}, "periodSeconds: Invalid value: -1"),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}, "c.lifecycle.preStop.sleep.seconds: Invalid value"),
        ({"lifecycle": {"postStart": {}}}, "c.lifecycle.postStart: Required value"),
        ({"terminationMessagePolicy": "Never"}, "c.terminationMessagePolicy: Unsupported value"),
        ({"terminationMessagePath": "a/../b"}, "c.terminationMessagePath: Invalid value"),
        ({"restartPolicy": "Maybe"}, 'supported values: "Always", "Never", "OnFailure"'),
    ],
)
def test_what_is_wrong_is_named_by_its_path(item: dict[str, object], words: str) -> None:
    (found,) = _problems(item)
    assert words in found


def test_only_init_containers_that_go_on_are_probed() -> None:
    probe = {"exec": {"command": ["a"]}}
    (found,) = _problems({"startupProbe": probe}, is_init=True)
    assert "c.startupProbe: Forbidden" in found
    assert _problems({"startupProbe": probe, "restartPolicy": "Always"}, is_init=True) == []
    (found,) = _problems({"restartPolicy": "Maybe"}, is_init=True)
    assert 'supported values: "Always"' in found
