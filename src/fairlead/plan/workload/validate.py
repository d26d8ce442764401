"""Judges workloads before they are stored, in the API server's words. Pure.

The pods of their templates are judged as every pod is.
Source: kubernetes pkg/apis/apps/validation, pkg/apis/batch/validation, pkg/apis/core/validation (ValidateService).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fairlead import errors
from fairlead.plan.workload import podset, schedule
from fairlead.wire.kubernetes import meta, names
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import Deployment, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job, JobSpec
from fairlead.wire.kubernetes.workloads.service import Service
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec
from fairlead.wire.text import timezone

_NOT_NEGATIVE: Final = "must be greater than or equal to 0"
_PERCENT: Final = re.compile(r"\d{1,4}%")
MOST_PODS: Final = 1000
"""Pods of one workload at once, as `fairlead run --replicas` has it."""
_MOST_COMPLETIONS: Final = 10_000
_NODE_PORTS: Final = range(1024, 65536)
_LONGEST: Final = {Deployment: 63, StatefulSet: 63, Job: 63, CronJob: 52, Service: 63, PodDisruptionBudget: 63}

Judged = Deployment | StatefulSet | Job | CronJob | Service | PodDisruptionBudget


def check(item: Judged) -> None:
    """Refuse a workload that breaks a rule. Raises: Invalid (`WorkloadInvalid`)."""
    problems = [*_metadata(item), *_spec(item)]
    if problems:
        shown = errors.readable(item.metadata.name[:80])
        text = "; ".join(problems[:20])
        raise errors.Invalid(f'{item.KIND} "{shown}" is invalid: {text}', reason="WorkloadInvalid", problems=problems)


def template_of(item: Judged) -> PodTemplateSpec | None:
    """Return the template that a workload makes pods of; None: it makes none."""
    match item:
        case CronJob():
            return item.spec.job_template.spec.template
        case Service() | PodDisruptionBudget():
            return None
        case _:
            return item.spec.template


def _metadata(item: Judged) -> Iterator[str]:
    name = item.metadata.name
    if not name:
        yield "metadata.name: Required value"
    elif not names.is_dns_label(name) or len(name) > _LONGEST[type(item)]:
        yield f'metadata.name: Invalid value: "{errors.readable(name[:80])}": {names.DNS_RULE}'


def _spec(item: Judged) -> Iterator[str]:
    match item:
        case Deployment():
            yield from _deployment(item)
        case StatefulSet():
            yield from _stateful_set(item)
        case Job():
            yield from _job("spec", item.spec)
        case CronJob():
            yield from _cron_job(item)
        case Service():
            yield from _service(item)
        case PodDisruptionBudget():
            yield from _disruption_budget(item)


def _replicas(replicas: int | None) -> Iterator[str]:
    if replicas is not None and not 0 <= replicas <= MOST_PODS:
        yield f"spec.replicas: Invalid value: {replicas}: must be between 0 and {MOST_PODS}"


def _selector(selector: meta.LabelSelector, template: PodTemplateSpec) -> Iterator[str]:
    if selector.match_expressions:
        yield "spec.selector.matchExpressions: Forbidden: only matchLabels are offered on one machine"
    if not selector.match_labels:
        yield "spec.selector: Required value"
    elif not podset.matches(selector.match_labels, template.metadata.labels):
        yield "spec.template.metadata.labels: Invalid value: `selector` does not match template `labels`"
    if template.spec.restart_policy != "Always":
        yield f'spec.template.spec.restartPolicy: Unsupported value: "{template.spec.restart_policy}": use "Always"'
    if template.spec.active_deadline_seconds is not None:
        yield "spec.template.spec.activeDeadlineSeconds: Forbidden: a workload's pods run for ever"


def _deployment(item: Deployment) -> Iterator[str]:
    yield from _replicas(item.spec.replicas)
    yield from _selector(item.spec.selector, item.spec.template)
    strategy = item.spec.strategy
    if strategy.type not in {"", "RollingUpdate", "Recreate"}:
        shown = errors.readable(strategy.type[:80])
        yield f'spec.strategy.type: Unsupported value: "{shown}": supported values: "Recreate", "RollingUpdate"'
    if strategy.rolling_update is not None:
        path = "spec.strategy.rollingUpdate"
        if strategy.type == "Recreate":
            yield f"{path}: Forbidden: may not be specified when strategy `type` is 'Recreate'"
        surge, missing = strategy.rolling_update.max_surge, strategy.rolling_update.max_unavailable
        yield from _amount(f"{path}.maxSurge", surge)
        yield from _amount(f"{path}.maxUnavailable", missing)
        if surge in {0, "0%"} and missing in {0, "0%"}:
            yield f"{path}.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"
    yield from _seconds("spec.minReadySeconds", item.spec.min_ready_seconds)
    yield from _seconds("spec.progressDeadlineSeconds", item.spec.progress_deadline_seconds)


def _stateful_set(item: StatefulSet) -> Iterator[str]:
    yield from _replicas(item.spec.replicas)
    yield from _selector(item.spec.selector, item.spec.template)
    if item.spec.pod_management_policy not in {"", "OrderedReady", "Parallel"}:
        yield 'spec.podManagementPolicy: Unsupported value: supported values: "OrderedReady", "Parallel"'
    if item.spec.update_strategy.type not in {"", "RollingUpdate", "OnDelete"}:
        yield 'spec.updateStrategy.type: Unsupported value: supported values: "OnDelete", "RollingUpdate"'
    if item.spec.update_strategy.rolling_update is not None:
        yield from _seconds(
            "spec.updateStrategy.rollingUpdate.partition", item.spec.update_strategy.rolling_update.partition
        )
    if item.spec.ordinals is not None:
        yield from _seconds("spec.ordinals.start", item.spec.ordinals.start)
    for index, claim in enumerate(item.spec.volume_claim_templates):
        if not names.is_dns_label(claim.metadata.name):
            yield f"spec.volumeClaimTemplates[{index}].metadata.name: Invalid value: {names.DNS_RULE}"


def _amount(path: str, value: int | str | None) -> Iterator[str]:
    if isinstance(value, int) and value < 0:
        yield f"{path}: Invalid value: {value}: {_NOT_NEGATIVE}"
    if isinstance(value, str) and not _PERCENT.fullmatch(value):
        yield f'{path}: Invalid value: "{errors.readable(value[:80])}": a valid percent string, such as 25%'


def _seconds(path: str, value: int | None) -> Iterator[str]:
    if value is not None and not 0 <= value < 2**31:
        yield f"{path}: Invalid value: {value}: {_NOT_NEGATIVE}"


def _job(path: str, spec: JobSpec) -> Iterator[str]:
    counts = (("parallelism", spec.parallelism, MOST_PODS), ("completions", spec.completions, _MOST_COMPLETIONS))
    for name, number, most in counts:
        if number is not None and not 0 <= number <= most:
            yield f"{path}.{name}: Invalid value: {number}: must be between 0 and {most}"
    for name, number in (
        ("backoffLimit", spec.backoff_limit),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished),
    ):
        yield from _seconds(f"{path}.{name}", number)
    if spec.completion_mode not in {"", "NonIndexed", "Indexed"}:
        shown = errors.readable(spec.completion_mode[:80])
        yield f'{path}.completionMode: Unsupported value: "{shown}": supported values: "Indexed", "NonIndexed"'
    if spec.completion_mode == "Indexed" and spec.completions is None:
        yield f"{path}.completions: Required value: when completion mode is Indexed"
    policy = spec.template.spec.restart_policy
    if policy not in {"OnFailure", "Never"}:
        yield (
            f'{path}.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never" '
            f'(it is "{errors.readable(policy[:80])}")'
        )


def _cron_job(item: CronJob) -> Iterator[str]:
    try:
        schedule.parse(item.spec.schedule)
    except errors.Invalid as error:
        yield f"spec.schedule: Invalid value: {error.message}"
    if item.spec.time_zone is not None and timezone.zone(item.spec.time_zone) is None:
        yield f'spec.timeZone: Invalid value: "{errors.readable(item.spec.time_zone[:80])}": unknown time zone'
    if item.spec.concurrency_policy not in {"", "Allow", "Forbid", "Replace"}:
        yield 'spec.concurrencyPolicy: Unsupported value: supported values: "Allow", "Forbid", "Replace"'
    for name, number in (
        ("startingDeadlineSeconds", item.spec.starting_deadline_seconds),
        ("successfulJobsHistoryLimit", item.spec.successful_jobs_history_limit),
        ("failedJobsHistoryLimit", item.spec.failed_jobs_history_limit),
    ):
        yield from _seconds(f"spec.{name}", number)
    yield from _job("spec.jobTemplate.spec", item.spec.job_template.spec)


def _disruption_budget(item: PodDisruptionBudget) -> Iterator[str]:
    spec = item.spec
    if spec.min_available is not None and spec.max_unavailable is not None:
        yield "spec: Invalid value: minAvailable and maxUnavailable cannot be both set"
    yield from _amount("spec.minAvailable", spec.min_available)
    yield from _amount("spec.maxUnavailable", spec.max_unavailable)
    if spec.selector is not None and spec.selector.match_expressions:
        yield "spec.selector.matchExpressions: Forbidden: only matchLabels are offered on one machine"


def _service(item: Service) -> Iterator[str]:
    kind, spec = item.spec.type or "ClusterIP", item.spec
    if kind not in {"ClusterIP", "NodePort", "LoadBalancer"}:
        yield f'spec.type: Unsupported value: "{errors.readable(kind[:80])}": ClusterIP, NodePort or LoadBalancer'
    if spec.cluster_ip not in {"", "None"}:
        yield f'spec.clusterIP: Invalid value: "{errors.readable(spec.cluster_ip[:80])}": leave it out, or write None'
    if not spec.selector:
        yield "spec.selector: Required value: a Service without one leads nowhere on one machine"
    if not spec.ports and spec.cluster_ip != "None":
        yield "spec.ports: Required value"
    yield from _ports(item, kind)


def _ports(item: Service, kind: str) -> Iterator[str]:
    spec = item.spec
    taken: set[tuple[str, int]] = set()
    for index, one in enumerate(spec.ports):
        path, protocol = f"spec.ports[{index}]", one.protocol or "TCP"
        if not 1 <= one.port <= 65535:
            yield f"{path}.port: Invalid value: {one.port}: must be between 1 and 65535, inclusive"
        if isinstance(one.target_port, int) and not 1 <= one.target_port <= 65535:
            yield f"{path}.targetPort: Invalid value: {one.target_port}: must be between 1 and 65535, inclusive"
        if protocol not in {"TCP", "UDP"}:
            yield f'{path}.protocol: Unsupported value: "{errors.readable(protocol[:80])}": "TCP" or "UDP"'
        if protocol == "UDP" and one.target_port not in {None, one.port}:
            yield f"{path}.targetPort: Forbidden: a UDP port leads to the port of its own number alone here"
        if (protocol, one.port) in taken:
            yield f"{path}: Duplicate value: {one.port}/{protocol}"
        taken.add((protocol, one.port))
        if len(spec.ports) > 1 and not one.name:
            yield f"{path}.name: Required value"
        yield from _node_port(path, kind, one.node_port, protocol)


def _node_port(path: str, kind: str, number: int, protocol: str) -> Iterator[str]:
    if number and kind == "ClusterIP":
        yield f"{path}.nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"
    elif number and number not in _NODE_PORTS:
        yield f"{path}.nodePort: Invalid value: {number}: must be between {_NODE_PORTS[0]} and {_NODE_PORTS[-1]}"
    if kind != "ClusterIP" and protocol == "UDP":
        yield f"{path}.protocol: Unsupported value: a port of the machine leads to TCP alone here"
