"""Holds one Compose project, checks what it is made of, chooses its services and puts them in order. Pure.

Source: Compose specification, "Profiles", "depends_on"; docker compose's naming of projects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors
from fairlead.plan.compose import shape, value
from fairlead.plan.compose.fields import Remarks, judge
from fairlead.wire.compose.document import Tagged

MOST_SERVICES: Final = 200
CONDITIONS: Final = ("service_started", "service_healthy", "service_completed_successfully")
LABEL: Final = "com.docker.compose"
"""What the keys begin with by which Compose's objects are known."""
PROJECT, SERVICE, NUMBER = f"{LABEL}.project", f"{LABEL}.service", f"{LABEL}.container-number"
HASH, ALIASES, VOLUME = f"{LABEL}.config-hash", f"{LABEL}.aliases", f"{LABEL}.volume"
GATEWAY: Final = f"{LABEL}.host-gateway"
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")
_PROJECT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_UNFIT: Final = re.compile(r"[^a-z0-9]+")
_TOP: Final = ("networks", "volumes", "configs", "secrets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One project, its files merged, its variables put in, its environment files read."""

    name: str
    services: Mapping[str, Mapping[str, Any]]
    """Those that are enabled, with the long forms of their attributes."""
    disabled: frozenset[str] = frozenset()
    """Services of profiles that are not active."""
    networks: Mapping[str, Any] = field(default_factory=dict)
    volumes: Mapping[str, Any] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    """Of configs and secrets, by `("configs", NAME)`."""


def check_name(name: str) -> str:
    """Return a project's name. Raises: Invalid."""
    if not _PROJECT_NAME.fullmatch(name):
        message = (
            f'"{value.shown(name)}" is not a name of a project: lower case letters, digits, "-" and "_", 40 at most'
        )
        raise errors.Invalid(message, reason="ComposeInvalid", hint=f"-p {default_name(name)}")
    return name


def default_name(folder: str) -> str:
    """Return the name that a folder gives a project."""
    return re.sub(r"[^a-z0-9_-]", "", folder.lower()).lstrip("-_")[:40] or "default"


def object_name(*parts: str) -> str:
    """Return the name of an object: parts in lower case, joined by dashes."""
    return "-".join(_UNFIT.sub("-", part.lower()).strip("-") for part in parts if part)


def shaped(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one file with the long forms of its services.

    Args:   name: of the file, for messages about the whole of it.
    Raises: Invalid: a part has the wrong type, or there are too many services.
    """
    found = dict(document)
    for key in _TOP:
        if key in found and not isinstance(found[key], Tagged):
            found[key] = {
                one: inner if isinstance(inner, Tagged) else value.mapping(inner, f"{key}.{one}")
                for one, inner in value.mapping(found[key], key).items()
            }
    given = found.get("services")
    if given is None or isinstance(given, Tagged):
        return found
    services = value.mapping(given, "services")
    if len(services) > MOST_SERVICES:
        problem = f"it has {len(services)} services, at most {MOST_SERVICES} are run together"
        raise value.invalid(errors.readable(name), problem, "part it into several projects: -p NAME")
    for one in services:
        if not _NAME.fullmatch(one):
            problem = "a service's name is of letters, digits, . _ and -, 63 at most"
            raise value.invalid(f"services.{value.shown(one)}", problem)
    found["services"] = {
        one: inner if isinstance(inner, Tagged) else shape.service(inner, f"services.{one}")
        for one, inner in services.items()
    }
    return found


def check_top(document: Mapping[str, Any], remarks: Remarks) -> None:
    """Judge the keys of a whole project and of its parts beside services."""
    judge("project", document, "", remarks)
    for key, kind in (("networks", "networks"), ("volumes", "volume"), ("configs", "config"), ("secrets", "secret")):
        for name, inner in (document.get(key) or {}).items():
            judge(kind, inner or {}, f"{key}.{name}", remarks)
    for name, inner in (document.get("volumes") or {}).items():
        if (inner or {}).get("driver") not in (None, "", "local"):
            remarks.refuse(f"volumes.{name}.driver", "volumes are folders of this machine: leave it out")
    for name, inner in (document.get("networks") or {}).items():
        if value.boolean((inner or {}).get("internal", False), f"networks.{name}.internal"):
            remarks.refuse(f"networks.{name}.internal", "its containers would still reach the world outside")
        if (inner or {}).get("driver") not in (None, "", "bridge", "default"):
            remarks.refuse(f"networks.{name}.driver", "a project has one network of the engine's own: leave it out")


def select(
    services: Mapping[str, Mapping[str, Any]], profiles: Collection[str], named: Sequence[str] = ()
) -> tuple[dict[str, Mapping[str, Any]], frozenset[str]]:
    """Return the services that are enabled, and the names of the others.

    Args:   named: services that are asked for by name, which enables them.
    Raises: Invalid: a name is not a service's.
    """
    for one in named:
        if one not in services:
            close = errors.closest(one[:64], services)
            hint = f'did you mean "{close}"?' if close else f"it has {', '.join(sorted(services)[:20])}"
            raise errors.Invalid(f"no such service: {value.shown(one)}", reason="ServiceUnknown", hint=hint)
    active = set(profiles)
    enabled = {
        name: one
        for name, one in services.items()
        if not one.get("profiles") or active & {*one["profiles"], "*"} or "*" in active or name in named
    }
    return enabled, frozenset(services.keys() - enabled.keys())


def needed(project: Project, named: Sequence[str]) -> list[str]:
    """Return services with all that they depend on, those first. Args: named: none: every one.

    Raises: Invalid: they depend on each other, or on one that is not there.
    """
    order, ways = list[str](), dict[str, bool]()
    for first in named or sorted(project.services):
        stack: list[tuple[str, Iterator[str]]] = []
        if first not in ways:
            ways[first] = False
            stack.append((first, iter(dependencies(project, first))))
        while stack:
            name, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                ways[name] = True
                order.append(name)
                stack.pop()
            elif following not in ways:
                ways[following] = False
                stack.append((following, iter(dependencies(project, following))))
            elif not ways[following]:
                chain = [one for one, _ in stack]
                shown = " -> ".join([*chain[chain.index(following) :], following][:20])
                raise value.invalid(f"services.{name}.depends_on", f"a circle: {shown}")
    return order


def dependencies(project: Project, name: str) -> dict[str, str]:
    """Return the conditions that a service waits for, by the service that they are of.

    Raises: Invalid: it is not there, or not enabled, and required; or the condition is none.
    """
    service, found = project.services[name], dict[str, str]()
    for one, given in (service.get("depends_on") or {}).items():
        path = f"services.{name}.depends_on.{one}"
        value.only(given, ("condition", "required", "restart"), path)
        condition = str(given.get("condition") or CONDITIONS[0])
        if condition not in CONDITIONS:
            raise value.invalid(f"{path}.condition", f'"{value.shown(condition)}" is not one', ", ".join(CONDITIONS))
        if one in project.services:
            found[one] = condition
        elif value.boolean(given.get("required", True), f"{path}.required"):
            is_off = one in project.disabled
            problem = "its profile is not active" if is_off else "there is no such service"
            hint = "--profile NAME, or `required: false`" if is_off else None
            raise value.invalid(path, problem, hint)
    for link in _links(service):
        if link in project.services:
            found.setdefault(link, CONDITIONS[0])
    return found


def _links(service: Mapping[str, Any]) -> Iterable[str]:
    return (one.partition(":")[0] for one in service.get("links") or ())


def replicas(service: Mapping[str, Any], path: str) -> int:
    """Return how many containers a service has. Raises: Invalid."""
    deploy = value.mapping(service.get("deploy"), f"{path}.deploy")
    given = service["scale"] if service.get("scale") is not None else deploy.get("replicas")
    return 1 if given is None else value.whole(given, f"{path}.deploy.replicas", most=200)
