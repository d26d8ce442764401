"""The trace: order, gaps named as gaps, nothing invented."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.container.step import TraceStep
from fairlead.plan import trace
from fairlead.plan.trace import STAGES, Record
from fairlead.wire.kubernetes import core, meta


def _step(layer: str, reason: str, at: float, **facts: object) -> TraceStep:
    return TraceStep(layer=layer, reason=reason, message=f"{reason} done", at=at, facts=facts)


_FULL = [_step(stage.layer, stage.reasons[0], float(rank)) for rank, stage in enumerate(STAGES)]
_NODE, _POD = _FULL[:2], _FULL[2:]


def test_a_full_trace_has_every_stage_once_in_the_tables_order() -> None:
    result = trace.order_trace(_POD, _NODE, is_final=True, resources=("nvidia.com/gpu",))
    assert [entry.stage for entry in result.entries] == [stage.key for stage in STAGES]
    assert {entry.record for entry in result.entries} == {Record.RECORDED}


def test_offsets_count_from_the_pods_first_step_and_are_negative_for_the_node() -> None:
    result = trace.order_trace(_POD, _NODE, is_final=True, resources=("nvidia.com/gpu",))
    assert [entry.offset_s for entry in result.entries[:4]] == [-2.0, -1.0, 0.0, 1.0]


def test_a_missing_stage_is_named_where_it_belongs_and_never_filled() -> None:
    steps = [step for step in _POD if step.reason != "IsolationRead"]
    result = trace.order_trace(steps, _NODE, is_final=True, resources=("nvidia.com/gpu",))
    gap = next(entry for entry in result.entries if entry.stage == "isolated")
    assert (gap.record, gap.step, gap.offset_s) == (Record.MISSING, None, None)
    keys = [entry.stage for entry in result.entries]
    assert keys.index("created") < keys.index("isolated") < keys.index("started")


def test_stages_ahead_of_a_living_pod_are_not_yet_rather_than_missing() -> None:
    result = trace.order_trace(_POD[:2], _NODE, is_final=False, resources=("nvidia.com/gpu",))
    assert {entry.record for entry in result.entries[4:]} == {Record.AHEAD}


def test_a_pod_without_devices_has_no_device_stages() -> None:
    result = trace.order_trace([_POD[0]], _NODE, is_final=False, resources=())
    assert not {"found", "advertised", "chosen", "allocated", "edits"} & {entry.stage for entry in result.entries}


def test_only_the_nodes_latest_step_before_the_pod_counts() -> None:
    found = [_step("silicon", "GPUsFound", at, run=at) for at in (1.0, 5.0, 20.0)]
    accepted = _step("api", "Accepted", 10.0)
    result = trace.order_trace([accepted], found, is_final=False, resources=("nvidia.com/gpu",))
    first = result.entries[0].step
    assert first is not None
    assert first.at == 5.0


def test_only_the_plugins_of_the_pods_resources_are_in_its_trace() -> None:
    def listed(resource: str, at: float, socket: str) -> TraceStep:
        facts = {"resource": resource, "socket": socket}
        return TraceStep(layer="deviceplugin", reason="DevicesAdvertised", message=resource, at=at, facts=facts)

    found = [
        listed("nvidia.com/gpu", 1.0, "nvidia-gpu.sock"),
        listed("fairlead.dev/gpu", 2.0, "fairlead-gpu.sock"),
        listed("example.com/nic", 3.0, "nic.sock"),
    ]
    accepted = _step("api", "Accepted", 10.0)
    result = trace.order_trace([accepted], found, is_final=False, resources={"nvidia.com/gpu": 1, "example.com/nic": 1})
    shown = [entry.step.facts["socket"] for entry in result.entries if entry.stage == "advertised" and entry.step]
    assert shown == ["nvidia-gpu.sock", "nic.sock"]


def test_repeated_refusals_are_folded_into_the_last_with_their_number() -> None:
    refused = [_step("scheduler", "FailedScheduling", at) for at in (1.0, 2.0, 3.0)]
    result = trace.order_trace([_step("api", "Accepted", 0.0), *refused], [], is_final=False, resources=())
    entry = next(entry for entry in result.entries if entry.stage == "scheduled")
    assert entry.count == 3
    assert entry.step == refused[-1]


def test_a_step_of_no_known_stage_is_kept_at_its_time() -> None:
    pulled = _step("engine", "ImagePulled", 0.5)
    result = trace.order_trace(
        [_step("api", "Accepted", 0.0), pulled, _step("engine", "ContainerCreated", 1.0)],
        [],
        is_final=False,
        resources=(),
    )
    recorded = [entry.step.reason for entry in result.entries if entry.step]
    assert recorded == ["Accepted", "ImagePulled", "ContainerCreated"]


def test_no_steps_at_all_is_a_trace_of_gaps() -> None:
    result = trace.order_trace([], [], is_final=False, resources=("nvidia.com/gpu",))
    assert result.started_at is None
    assert {entry.record for entry in result.entries} == {Record.AHEAD}


def test_why_is_the_latest_warning_or_schedulers_step() -> None:
    failed = TraceStep(layer="kubelet", reason="ImagePullFailed", message="no", at=5.0, is_warning=True)
    steps = [_step("scheduler", "Scheduled", 2.0), failed, _step("api", "Accepted", 9.0)]
    assert trace.find_why(steps) == failed
    assert trace.find_why(steps[:1]) == steps[0]
    assert trace.find_why([]) is None


def test_the_choice_of_a_node_comes_before_what_the_node_did_whenever_it_was_told() -> None:
    told = [_step("api", "Accepted", 1.0), _step("kubelet", "DevicesChosen", 2.0), _step("scheduler", "Scheduled", 2.1)]
    result = trace.order_trace(told, [], is_final=False, resources=())
    recorded = [entry for entry in result.entries if entry.step is not None]
    assert [entry.stage for entry in recorded] == ["accepted", "scheduled", "chosen"]
    assert recorded[1].offset_s is not None
    assert recorded[1].offset_s > 1.0


_TWO = core.ResourceRequirements(limits={"nvidia.com/gpu": 2}, requests={"nvidia.com/gpu": 2})
_MADE = core.Pod(
    metadata=meta.ObjectMeta(name="gpu-pod", creation_timestamp="1970-01-01T00:00:07Z"),
    spec=core.PodSpec(
        containers=(core.Container(name="main", image="cuda", resources=_TWO),),
    ),
)


def test_a_pod_that_came_another_way_is_accepted_when_the_server_says_it_was_made() -> None:
    (accepted, *others) = trace.with_acceptance([_step("scheduler", "Scheduled", 7.5)], _MADE)
    assert (accepted.layer, accepted.reason, accepted.at) == ("api", "Accepted", 7.5)
    assert trace.with_acceptance([_step("scheduler", "Scheduled", 9.0)], _MADE)[0].at == 8.0
    assert accepted.facts["resources"] == {"nvidia.com/gpu": 2}
    assert [step.reason for step in others] == ["Scheduled"]


def test_an_acceptance_names_devices_that_were_asked_for_by_name() -> None:
    named = core.MachineOptions(devices=("lab.example/thing=full",))
    pod = msgspec.structs.replace(_MADE, spec=msgspec.structs.replace(_MADE.spec, machine=named))
    (accepted,) = trace.with_acceptance([], pod)
    assert accepted.message == "accepted, asking for 2 x nvidia.com/gpu, lab.example/thing=full"


def test_an_acceptance_names_claims_that_were_asked_for() -> None:
    claims = (core.PodResourceClaim(name="pair", resource_claim_name="two"), core.PodResourceClaim(name="made"))
    pod = msgspec.structs.replace(_MADE, spec=core.PodSpec(resource_claims=claims))
    (accepted,) = trace.with_acceptance([], pod)
    assert accepted.message == "accepted, asking for the devices of claim two, the devices of claim made"


def test_an_acceptance_that_was_recorded_is_the_only_one() -> None:
    recorded = [_step("api", "Accepted", 7.2)]
    assert trace.with_acceptance(recorded, _MADE) == tuple(recorded)


_SOME = st.lists(
    st.builds(
        _step,
        st.sampled_from(["silicon", "api", "scheduler", "kubelet", "deviceplugin", "engine", "kernel", "odd"]),
        st.sampled_from([reason for stage in STAGES for reason in stage.reasons] + ["Odd"]),
        st.floats(0, 100),
    ),
    max_size=12,
)


@given(pod=_SOME, node=_SOME, is_final=st.booleans(), has_devices=st.booleans())
def test_every_pod_step_is_kept_and_no_step_is_made_up(
    pod: list[TraceStep], node: list[TraceStep], is_final: bool, has_devices: bool
) -> None:
    result = trace.order_trace(pod, node, is_final=is_final, resources=("nvidia.com/gpu",) if has_devices else ())
    shown = [entry.step for entry in result.entries if entry.step is not None]
    assert all(step in pod or step in node for step in shown)
    from_pod = sum(entry.count for entry in result.entries if entry.step is not None and entry.step in pod)
    assert from_pod >= len(pod)
    keys = [entry.stage for entry in result.entries if entry.record is not Record.RECORDED]
    assert len(keys) == len(set(keys))


def _kubelets_word(*, restarted: bool = False, running: bool = False) -> core.Pod:
    over = core.ContainerStateTerminated(
        exit_code=3, reason="Error", started_at="2026-01-01T00:00:01Z", finished_at="2026-01-01T00:00:02Z"
    )
    again = core.ContainerStateRunning(started_at="2026-01-01T00:00:09Z") if running else None
    status = core.ContainerStatus(
        name="main",
        state=core.ContainerStateUnion(running=again, terminated=None if restarted or running else over),
        last_state=core.ContainerStateUnion(terminated=over if restarted else None),
    )
    return core.Pod(status=core.PodStatus(container_statuses=(status,)))


def test_starts_and_ends_that_nobody_recorded_are_the_kubelets_word() -> None:
    ended = trace.with_statuses((), _kubelets_word())
    assert [(step.layer, step.reason, step.message) for step in ended] == [
        ("engine", "ContainerStarted", "main started, its kubelet says"),
        ("process", "ContainerEnded", "main ended with 3 (Error), its kubelet says"),
    ]
    assert ended[1].facts == {"container": "main", "exit_code": 3}
    again = trace.with_statuses((), _kubelets_word(restarted=True, running=True))
    assert [step.reason for step in again] == ["ContainerStarted", "ContainerEnded", "ContainerStarted"]
    assert [step.at - again[0].at for step in again] == [0, 1, 8]


def test_what_was_recorded_of_a_container_is_not_told_twice() -> None:
    recorded = (_step("engine", "ContainerStarted", 1.0, container="main"),)
    assert [step.reason for step in trace.with_statuses(recorded, _kubelets_word())] == [
        "ContainerStarted",
        "ContainerEnded",
    ]


def test_a_container_that_has_not_run_adds_no_step() -> None:
    waiting = core.ContainerStatus(name="main")
    unstarted = core.ContainerStatus(name="x", state=core.ContainerStateUnion(running=core.ContainerStateRunning()))
    pod = core.Pod(status=core.PodStatus(container_statuses=(waiting, unstarted)))
    assert trace.with_statuses((), pod) == ()


def test_what_a_kubelet_told_to_the_whole_second_stands_behind_the_scheduler_and_never_goes_back_in_time() -> None:
    steps = [
        _step("api", "Accepted", 100.2),
        _step("scheduler", "Scheduled", 100.225),
        _step("kubelet", "FailedMount", 100.0),
        _step("engine", "ContainerStarted", 101.0),
    ]
    result = trace.order_trace(steps, (), is_final=False, resources=())
    told = [(entry.title, round(entry.offset_s, 3)) for entry in result.entries if entry.offset_s is not None]
    assert told == [
        ("request accepted", 0.0),
        ("node chosen", 0.025),
        ("FailedMount", 0.025),
        ("container started", 0.8),
    ]
