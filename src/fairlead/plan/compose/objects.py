"""Makes objects of a Compose project: a pod for each container, a Service for each name, volumes, values. Pure.

Each object has docker compose's labels, so that a project is found without its file. A pod says by a hash what it was
made of: another hash is another pod.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead.plan.compose import gpu, health, mount, pod, project, value
from fairlead.plan.compose.fields import Remarks, judge
from fairlead.plan.compose.project import Project, object_name
from fairlead.wire.kubernetes import names
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaimTemplate

_LABEL_KEY: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_ALIAS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
MOST_CONTAINERS: Final = 400
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One service as it is run."""

    name: str
    image: str
    pods: tuple[Document, ...]
    dependencies: Mapping[str, str]
    """Conditions by service."""
    check: health.Check | None
    is_followed: bool = True
    """Whether `up` shows its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """A project as objects."""

    shared: tuple[Document, ...]
    """What pods name: made before them."""
    units: Mapping[str, Unit]
    """By service."""
    networks: tuple[str, ...] = ()


def make(found: Project, machine: gpu.Machine, remarks: Remarks) -> Objects:
    """Return the objects of a project. Raises: Invalid: what is wrong, or what may not be left out (`Remarks`)."""
    links = _links(found)
    shared, units = list[Document](), dict[str, Unit]()
    used = dict[str, str]()
    for name, service in found.services.items():
        own = object_name(found.name, name)
        if used.setdefault(own, name) != name:
            raise value.invalid(f"services.{name}", f'its containers would be called as those of "{used[own]}"')
        if not names.is_dns_label(own):
            raise value.invalid(f"services.{name}", f'"{own}" with the project\'s name is longer than 63 characters')
        units[name] = _unit(found, name, machine, remarks, shared)
        shared.append(_name(found, name, pod.aliases(name, service, links.get(name, ())), remarks))
    shared += _volumes(found)
    shared += _values(found, remarks)
    _check_ports(units, remarks)
    _check_networks(found, remarks)
    _check_gpus(units, machine, remarks)
    if sum(len(one.pods) for one in units.values()) > MOST_CONTAINERS:
        raise value.invalid("services", f"they are more than {MOST_CONTAINERS} containers together")
    remarks.check()
    return Objects(shared=tuple(shared), units=units)


def judge_build(build: Mapping[str, Any], path: str, remarks: Remarks) -> None:
    """Note what of a `build` is not carried out."""
    judge("build", build, path, remarks)


def _links(found: Project) -> dict[str, list[str]]:
    by_service = dict[str, list[str]]()
    for service in found.services.values():
        for one in service.get("links") or ():
            name, _, alias = one.partition(":")
            if alias:
                by_service.setdefault(name, []).append(alias)
    return by_service


def _labels(found: Project, name: str) -> dict[str, str]:
    return {project.PROJECT: found.name, project.SERVICE: name}


def _unit(found: Project, name: str, machine: gpu.Machine, remarks: Remarks, shared: list[Document]) -> Unit:
    service, path = found.services[name], f"services.{name}"
    spec, wanted = pod.spec(found, name, machine, remarks)
    if wanted.uuids or (wanted.count and machine.by_claims):
        template = _claim(found, name, wanted)
        shared.append(template)
        claim = {"name": "gpus", "resourceClaimTemplateName": template["metadata"]["name"]}
        spec["resourceClaims"] = [claim]
    count = project.replicas(service, path)
    labels, annotations = _own_labels(service, path)
    digest = _digest(found, service, spec)
    gateway_names = pod.gateway_names(service)
    gateway = {project.GATEWAY: ",".join(gateway_names)} if gateway_names else {}
    pods = []
    for number in range(1, count + 1):
        about = {
            "name": _container(found, name, number, count),
            "labels": {**labels, **_labels(found, name), project.NUMBER: str(number)},
            "annotations": {**annotations, **gateway, project.HASH: digest},
        }
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    return Unit(
        name=name,
        image=pod.image(found, name, service),
        pods=tuple(pods),
        dependencies=project.dependencies(found, name),
        check=health.check(service, path, Remarks()),
        is_followed=value.boolean(service.get("attach", True), f"{path}.attach"),
    )


def _container(found: Project, name: str, number: int, count: int) -> str:
    own = str(found.services[name].get("container_name") or "")
    if not own:
        return f"{object_name(found.name, name)}-{number}"
    if count > 1:
        raise value.invalid(f"services.{name}.container_name", f"{count} containers cannot have one name")
    plain = object_name(own)
    if not plain or len(plain) > 253:
        raise value.invalid(f"services.{name}.container_name", f'"{value.shown(own)}" is not a name')
    return plain


def _own_labels(service: Mapping[str, Any], path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return a service's labels where they are labels here too, and all of them as annotations."""
    given = {**(service.get("labels") or {}), **(service.get("annotations") or {})}
    kept = dict[str, str]()
    for key, one in given.items():
        if key.startswith(f"{project.LABEL}."):
            raise value.invalid(f"{path}.labels", f'"{value.shown(key)}" is one of Compose\'s own')
        if _LABEL_KEY.fullmatch(key):
            kept[key] = one
    labels = {key: one for key, one in (service.get("labels") or {}).items() if _LABEL_KEY.fullmatch(key)}
    return {key: one for key, one in labels.items() if _LABEL_VALUE.fullmatch(one)}, kept


def _digest(found: Project, service: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return what a pod is made of as a hash: its spec, and the values that it takes from configs and secrets."""
    sum_ = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for kind in ("configs", "secrets"):
        for one in service.get(kind) or ():
            sum_.update(found.contents.get((kind, str(one.get("source"))), b""))
            sum_.update(b"\0")
    return sum_.hexdigest()


def _name(found: Project, name: str, aliases: list[str], remarks: Remarks) -> Document:
    """Return the Service by which a service's containers are found; it has no ports: names are their addresses."""
    fit = list[str]()
    for one in aliases:
        if _ALIAS.fullmatch(one) and one != "localhost":
            fit.append(one)
        else:
            remarks.refuse(f"services.{name}.networks", f'"{value.shown(one)}" is not a name of a host')
    about = {
        "name": object_name(found.name, name),
        "labels": _labels(found, name),
        "annotations": {project.ALIASES: ",".join(fit)},
    }
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(found, name)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}


def _claim(found: Project, name: str, wanted: gpu.Asked) -> Document:
    """Return the template of a claim for a number of GPUs, or for certain ones; what is asked is in its name."""
    uuids = wanted.uuids
    mark = hashlib.sha256(f"{wanted.count} {','.join(uuids)}".encode()).hexdigest()[:8]
    exactly: Document = {"deviceClassName": "gpu.nvidia.com", "count": len(uuids) or wanted.count}
    if uuids:
        exactly["selectors"] = [{"cel": {"expression": gpu.selector(uuids)}}]
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    return {
        "apiVersion": ResourceClaimTemplate.API_VERSION,
        "kind": ResourceClaimTemplate.KIND,
        "metadata": {"name": f"{object_name(found.name, name)}-gpus-{mark}", "labels": _labels(found, name)},
        "spec": {"spec": spec},
    }


def _volumes(found: Project) -> list[Document]:
    used = {
        str(one["source"])
        for service in found.services.values()
        for one in service.get("volumes") or ()
        if one["type"] == "volume" and one.get("source")
    }
    made = list[Document]()
    for name, declared in found.volumes.items():
        if name in used and not mount.is_external(declared or {}, f"volumes.{name}"):
            about = {
                "name": mount.volume_name(found, name, f"volumes.{name}"),
                "labels": {project.PROJECT: found.name, project.VOLUME: object_name(name)[:63]},
            }
            made.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": {}})
    return made


def _values(found: Project, remarks: Remarks) -> list[Document]:
    made, used = list[Document](), dict[tuple[str, str], str]()
    for (kind, name), content in found.contents.items():
        own, key = mount.file_source(found, kind, name)
        if used.setdefault((kind, own), name) != name:
            raise value.invalid(f"{kind}.{name}", f'its object would be called as that of "{used[kind, own]}"')
        about = {"name": own, "labels": {project.PROJECT: found.name}}
        if not content and kind == "secrets":
            remarks.refuse(f"{kind}.{name}", "it is empty")
        text = base64.b64encode(content).decode()
        if kind == "secrets":
            made.append({"apiVersion": "v1", "kind": "Secret", "metadata": about, "data": {key: text}})
            continue
        try:
            data: Document = {"data": {key: content.decode()}}
        except UnicodeDecodeError:
            data = {"binaryData": {key: text}}
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, **data})
    return made


def _check_ports(units: Mapping[str, Unit], remarks: Remarks) -> None:
    """Refuse ports of the machine that two containers would have."""
    taken = dict[tuple[Any, ...], str]()
    for name, unit in units.items():
        published = [
            (one["hostPort"], one["protocol"], one.get("hostIP", ""))
            for document in unit.pods[:1]
            for one in document["spec"]["containers"][0].get("ports", ())
            if one.get("hostPort")
        ]
        if published and len(unit.pods) > 1:
            problem = f"{len(unit.pods)} containers cannot have port {published[0][0]} of the machine together"
            remarks.refuse(f"services.{name}.ports", problem)
        for key in published:
            if (other := taken.setdefault(key, name)) != name:
                remarks.refuse(f"services.{name}.ports", f"port {key[0]} of the machine is that of services.{other}")


def _check_networks(found: Project, remarks: Remarks) -> None:
    used = dict[str, None]()
    for name, service in found.services.items():
        for one in service.get("networks") or ():
            if one != "default" and one not in found.networks:
                raise value.invalid(
                    f"services.{name}.networks", f'there is no network "{value.shown(one)}" at the top level'
                )
            used[one] = None
    if len(used) > 1:
        shown = ", ".join(list(used)[:10])
        remarks.note("networks", f"{shown} are one network here: every service of the project reaches every other")
    for one in used:
        if mount.is_external(found.networks.get(one) or {}, f"networks.{one}"):
            remarks.note(f"networks.{one}", "names lead to the services of this project alone")


def _check_gpus(units: Mapping[str, Unit], machine: gpu.Machine, remarks: Remarks) -> None:
    """Refuse `all` GPUs for one container where another one of the project needs some too: both would never run."""
    if machine.total is None:
        return
    asked = {
        name: len(unit.pods)
        * int(unit.pods[0]["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
        for name, unit in units.items()
        if unit.pods
    }
    total = sum(asked.values())
    if total > machine.total and machine.total in asked.values():
        shown = ", ".join(f"{name} {count}" for name, count in asked.items() if count)
        why = f"they ask for {total} GPUs together ({shown}), and the machine has {machine.total}: write `count: 1`"
        remarks.refuse("services", why)
