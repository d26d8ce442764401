"""Decides whether a pod may be stored, in Kubernetes' words.

The cluster's API server enforces these rules there; on one machine this module does, so that a manifest is accepted or
refused alike standalone and on a cluster. Pure: a pod in, the defaulted pod out.
Source: kubernetes pkg/apis/core/validation and pkg/apis/core/v1/defaults.go (behaviour).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan.pod import affinity, machine, resourceclaim, volume
from fairlead.plan.pod.life import judge, resizepolicy, restart
from fairlead.plan.pod.network import port, resolver
from fairlead.plan.pod.values import downward, secret
from fairlead.wire.kubernetes import core, meta, names, quantity
from fairlead.wire.oci import imageref

_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_ENV: Final = re.compile(r"[ -<>-~]+")
_PULLS: Final = ("", "Always", "IfNotPresent", "Never")
_RESTART: Final = ("Always", "OnFailure", "Never")
_INT32: Final = 2**31 - 1
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_MOST_PROBLEMS: Final = 100
"""A document of 1.5 MB may break 100,000 rules; to say each would take ten times its size."""
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"


@functools.lru_cache(maxsize=1024)
def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one: a domain of its own, counted in whole devices.

    Source: pkg/apis/core/v1/helper, IsExtendedResourceName.
    """
    domain, _, name = resource.partition("/")
    return (
        _QUALIFIED.fullmatch(name) is not None
        and names.is_dns_subdomain(domain)
        and len(domain) <= 253 - len("requests.")
        and not domain.startswith("requests.")
        and not domain.endswith("kubernetes.io")
    )


def admit(pod: core.Pod) -> core.Pod:
    """Check a pod and fill defaults: requests from limits, image pull policy, restart policy.

    Returns: the pod to store.
    Raises:  Denied: it carries names of ours.
             Invalid: it is too large to be stored; broken rules, path by path, joined by "; ", the first ones.
    """
    document = msgspec.json.encode(pod)
    if len(document) > meta.LARGEST_BYTES:  # before its parts are judged, which takes a second
        about = pod.metadata
        message = f"Pod {about.namespace}/{about.name} is too large: {len(document)} bytes, the limit is "
        raise errors.Invalid(f"{message}{meta.LARGEST_BYTES}", reason="ObjectTooLarge")
    refuse_own_names(pod)
    broken = itertools.chain(_metadata(pod), _spec(pod.spec), machine.problems(pod.spec), _nuls(pod, document))
    problems = list(itertools.islice(broken, _MOST_PROBLEMS))
    if problems:
        name = pod.metadata.name or pod.metadata.generate_name
        text = "; ".join(problems) + ("; and more" if next(broken, None) is not None else "")
        raise errors.Invalid(f'Pod "{name}" is invalid: {text}', reason="PodInvalid", problems=problems)
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(
            _on_one_machine(pod.spec),
            containers=tuple(_defaulted(item) for item in pod.spec.containers),
            init_containers=tuple(_defaulted(item) for item in pod.spec.init_containers),
        ),
    )


def _on_one_machine(spec: core.PodSpec) -> core.PodSpec:
    """Leave out the rules that distinguish nodes and that a cluster's scheduler refuses; callers warn of them."""
    wanted = spec.affinity and msgspec.structs.replace(spec.affinity, pod_affinity=None, pod_anti_affinity=None)
    left_out: dict[str, Any] = {"topology_spread_constraints": (), "resources": None}
    if isolation.of_class(spec.runtime_class_name) not in isolation.WORDS:
        left_out["runtime_class_name"] = ""
    return msgspec.structs.replace(spec, affinity=wanted, **left_out)


def _nuls(pod: core.Pod, document: bytes) -> Iterator[str]:
    """Yield each string of a pod that holds a NUL. Without one, which is nearly always, nothing is walked through."""
    if b"\\u0000" in document:
        yield from _nul("", msgspec.to_builtins(pod))


def _nul(path: str, value: object) -> Iterator[str]:
    """Yield each string of an object that holds a NUL: no argument, variable or path of a program can (ours alone)."""
    match value:
        case str() if "\0" in value:
            shown = value.replace("\0", "\\0")
            yield f'{path}: Invalid value: "{shown}": must not contain NUL'
        case list() | tuple():
            for index, item in enumerate(value):
                if not isinstance(item, str) or "\0" in item:
                    yield from _nul(f"{path}[{index}]", item)
        case dict():
            for key, item in value.items():
                yield from _nul(path, key)
                if not isinstance(item, str) or "\0" in item:
                    yield from _nul(f"{path}.{key}" if path else key, item)


def refuse_own_names(item: meta.Object) -> None:
    """Refuse an object from outside with Fairlead's labels or annotations: they would pass for what a node wrote.

    On a cluster the chart's policy `reserved-names` says the same of every client but Fairlead.
    Raises: Denied (`NameReserved`).
    """
    about = item.metadata
    given = [("labels", name) for name in sorted(about.labels)]
    given += [("annotations", name) for name in sorted(about.annotations)]
    found = [f"metadata.{part}[{name}]" for part, name in given if names.is_own(name)]
    if found:
        name = about.name or about.generate_name
        message = f'{item.KIND} "{name}" is forbidden: {", ".join(found)}: only Fairlead itself writes {names.OWN}/'
        raise errors.Denied(message, reason="NameReserved", hint="leave it out, or use a domain of your own")


def _metadata(pod: core.Pod) -> Iterator[str]:
    name = pod.metadata.name
    if not name and not pod.metadata.generate_name:
        yield "metadata.name: Required value: name or generateName is required"
    if len(name) > 253:
        yield f'metadata.name: Invalid value: "{name}": must be no more than 253 characters'
    if name and not names.is_dns_subdomain(name):
        yield (
            f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        )
    if names.MIRROR in pod.metadata.annotations:
        # Such a pod is never ended for others: a user who could call one so would keep its GPUs.
        yield f"metadata.annotations[{names.MIRROR}]: Forbidden: only a kubelet makes mirror pods, of its own files"


def _spec(spec: core.PodSpec) -> Iterator[str]:
    if not spec.containers:
        yield "spec.containers: Required value"
    if spec.ephemeral_containers:
        yield "spec.ephemeralContainers: Forbidden: cannot be set on create"
    if spec.restart_policy not in _RESTART:
        offered = ", ".join(f'"{item}"' for item in _RESTART)
        yield f'spec.restartPolicy: Unsupported value: "{spec.restart_policy}": supported values: {offered}'
    yield from restart.gate_problems(spec)
    yield from _times(spec)
    yield from _user("spec", spec.security_context)
    if spec.hostname and not names.is_dns_label(spec.hostname):
        yield f'spec.hostname: Invalid value: "{spec.hostname}": {names.DNS_RULE}'
    yield from volume.problems(spec)
    yield from _duplicates((f"spec.volumes[{index}]", one.name) for index, one in enumerate(spec.volumes))
    for path, item in containers_by_path(spec):
        yield from container_problems(path, item, {one.name: one for one in spec.volumes})
        yield from _user(path, item.security_context)
    yield from _duplicates((path, item.name) for path, item in containers_by_path(spec))
    for path, item in containers_by_path(spec):
        is_init = path.startswith("spec.initContainers")
        yield from judge.problems(path, item, is_init=is_init, grace_s=spec.termination_grace_period_seconds)
        yield from _facts(path, item, spec)
        yield from resizepolicy.problems(path, item, pod_policy=spec.restart_policy)
    yield from resolver.problems(spec)
    yield from port.problems(containers_by_path(spec))
    yield from resourceclaim.problems(spec, containers_by_path(spec))
    yield from affinity.problems(spec)


def _user(path: str, context: core.SecurityContext | None) -> Iterator[str]:
    groups = context.supplemental_groups if context else ()
    if groups and path != "spec":
        yield f"{path}.securityContext.supplementalGroups: Forbidden: it is a field of the pod's securityContext"
    for index, group in enumerate(groups):
        if not 0 <= group <= _INT32:
            where = f"{path}.securityContext.supplementalGroups[{index}]"
            yield f"{where}: Invalid value: {group}: must be between 0 and {_INT32}, inclusive"
    given = {"runAsUser": context.run_as_user, "runAsGroup": context.run_as_group} if context else {}
    for name, number in given.items():
        if number is not None and not 0 <= number <= _INT32:
            yield f"{path}.securityContext.{name}: Invalid value: {number}: must be between 0 and {_INT32}, inclusive"


def _times(spec: core.PodSpec) -> Iterator[str]:
    grace_s, limit_s = spec.termination_grace_period_seconds, spec.active_deadline_seconds
    if grace_s < 0:
        yield f"spec.terminationGracePeriodSeconds: Invalid value: {grace_s}: {_NOT_NEGATIVE}"
    if limit_s is not None and not 1 <= limit_s <= _INT32:
        yield f"spec.activeDeadlineSeconds: Invalid value: {limit_s}: must be between 1 and {_INT32}, inclusive"


def _duplicates(named: Iterable[tuple[str, str]]) -> Iterator[str]:
    seen: set[str] = set()
    for path, name in named:
        if name in seen:
            yield f'{path}.name: Duplicate value: "{name}"'
        seen.add(name)


def containers_by_path(spec: core.PodSpec) -> Iterator[tuple[str, core.Container]]:
    """Yield init containers, then containers, each with its field path."""
    for kind, items in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, item in enumerate(items):
            yield f"spec.{kind}[{index}]", item


def container_problems(path: str, item: core.Container, volumes: Mapping[str, core.Volume]) -> Iterator[str]:
    """Yield what is wrong with what every container has. Args: volumes: of its pod, by name."""
    if not item.name:
        yield f"{path}.name: Required value"
    elif len(item.name) > 63:
        yield f'{path}.name: Invalid value: "{item.name}": must be no more than 63 characters'
    elif not names.is_dns_label(item.name):
        yield f'{path}.name: Invalid value: "{item.name}": {names.DNS_RULE}'
    yield from _image(f"{path}.image", item.image)
    if item.image_pull_policy not in _PULLS:
        offered = ", ".join(f'"{one}"' for one in _PULLS if one)
        yield f'{path}.imagePullPolicy: Unsupported value: "{item.image_pull_policy}": supported values: {offered}'
    for index, one in enumerate(item.env):
        if not one.name:
            yield f"{path}.env[{index}].name: Required value"
        elif not _ENV.fullmatch(one.name):
            yield (
                f'{path}.env[{index}].name: Invalid value: "{one.name}": a valid environment variable name '
                "must consist only of printable ASCII characters other than '='"
            )
    for index, mount in enumerate(item.volume_mounts):
        if mount.name not in volumes:
            yield f'{path}.volumeMounts[{index}].name: Not found: "{mount.name}"'
    yield from secret.problems(path, item)
    yield from _resources(f"{path}.resources", item.resources)


def _facts(path: str, item: core.Container, spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong with variables that are fields of the pod."""
    for index, one in enumerate(item.env):
        where, source = f"{path}.env[{index}].valueFrom", one.value_from
        if source is not None and source.field_ref is not None:
            yield from downward.field_problems(f"{where}.fieldRef", source.field_ref, is_file=False)
        if source is not None and source.resource_field_ref is not None:
            wanted = source.resource_field_ref
            yield from downward.resource_problems(f"{where}.resourceFieldRef", wanted, spec, is_file=False)


def _image(path: str, name: str) -> Iterator[str]:
    if not name.strip():
        yield f"{path}: Required value"
    elif not imageref.is_reference(name):
        yield (
            f'{path}: Invalid value: "{name}": couldn\'t parse image name: invalid reference format '
            "(write registry/path:tag, in lower case)"
        )


def _resources(path: str, wanted: core.ResourceRequirements) -> Iterator[str]:
    limits, bad_limits = _quantities(f"{path}.limits", wanted.limits)
    requests, bad_requests = _quantities(f"{path}.requests", wanted.requests)
    yield from (*bad_limits, *bad_requests)
    for resource, value in requests.items():
        limit = limits.get(resource)
        if is_extended(resource):
            yield from _extended_pair(path, resource, value, limit, resource in wanted.limits)
        elif limit is not None and value > limit:
            shown, ceiling = (quantity.canonical(side[resource]) for side in (wanted.requests, wanted.limits))
            yield (
                f'{path}.requests: Invalid value: "{shown}": must be less than or equal to '
                f"{resource} limit of {ceiling}"
            )


def _extended_pair(
    path: str, resource: str, request: Fraction, limit: Fraction | None, is_limit_given: bool
) -> Iterator[str]:
    if limit is None:
        if not is_limit_given:
            yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
    elif request != limit:
        yield f'{path}.requests: Invalid value: "{request}": must be equal to {resource} limit of {limit}'


def _quantities(path: str, given: Mapping[str, str | int | float]) -> tuple[dict[str, Fraction], list[str]]:
    values: dict[str, Fraction] = {}
    problems: list[str] = []
    for resource, text in given.items():
        where = f"{path}[{resource}]"
        wrong = _name_problem(resource)
        if wrong is not None:
            problems.append(f'{where}: Invalid value: "{resource}": {wrong}')
            continue
        try:
            value = quantity.parse_quantity(text)
        except errors.RequestError as error:
            problems.append(f'{where}: Invalid value: "{text}": {error.message}')
            continue
        if value < 0:
            problems.append(f'{where}: Invalid value: "{quantity.canonical(text)}": {_NOT_NEGATIVE}')
        elif is_extended(resource) and value.denominator != 1:
            problems.append(f'{where}: Invalid value: "{quantity.canonical(text)}": must be an integer')
        else:
            values[resource] = value
    return values, problems


def _name_problem(resource: str) -> str | None:
    domain, slash, _ = resource.partition("/")
    if resource == "pods":
        return "must be a standard resource for containers"
    if resource.startswith("hugepages-"):
        return "huge pages are given on a cluster alone: leave it out, or run the pod there"
    if not slash:
        return None if resource in _NATIVE else "must be a standard resource type or fully qualified"
    if is_extended(resource) or domain.endswith("kubernetes.io"):
        return None
    return "doesn't follow extended resource name standard"


def _defaulted(item: core.Container) -> core.Container:
    # IfNotPresent also for :latest: a machine without a registry must run what was built on it.
    policy = item.image_pull_policy or "IfNotPresent"
    requests = {**item.resources.limits, **item.resources.requests}
    resources = msgspec.structs.replace(item.resources, requests=requests)
    return msgspec.structs.replace(item, resources=resources, image_pull_policy=policy)


def effective_requests(spec: core.PodSpec) -> dict[str, Fraction]:
    """Return what the pod needs at once, per resource.

    That is the containers and sidecars together, or any one init container with the sidecars started before it,
    whichever is more; and the runtime's overhead.
    Source: component-helpers resource, PodRequests.
    """
    total = _effective(spec, lambda item: item.resources.requests)
    _raise_by(total, spec.overhead)
    return total


def effective_limits(spec: core.PodSpec) -> dict[str, Fraction]:
    """Return what the pod may use at once of each resource that any container limits, as `effective_requests`."""
    total = _effective(spec, lambda item: item.resources.limits)
    _raise_by(total, {name: value for name, value in spec.overhead.items() if name in total})
    return total


def _effective(
    spec: core.PodSpec, of: Callable[[core.Container], Mapping[str, str | int | float]]
) -> dict[str, Fraction]:
    running: dict[str, Fraction] = {}
    for item in spec.containers:
        _raise_by(running, of(item))
    sidecars: dict[str, Fraction] = {}
    starting: dict[str, Fraction] = {}
    for item in spec.init_containers:
        if item.restart_policy == "Always":
            _raise_by(running, of(item))
            _raise_by(sidecars, of(item))
            peak = sidecars
        else:
            peak = dict(sidecars)
            _raise_by(peak, of(item))
        starting = {name: max(starting.get(name, Fraction(0)), peak.get(name, Fraction(0))) for name in starting | peak}
    return {name: max(running.get(name, Fraction(0)), starting.get(name, Fraction(0))) for name in running | starting}


def _raise_by(total: dict[str, Fraction], amounts: Mapping[str, str | int | float]) -> None:
    for resource, text in amounts.items():
        total[resource] = total.get(resource, Fraction(0)) + quantity.parse_quantity(text)
