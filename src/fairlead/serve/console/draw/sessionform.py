"""Fills the submit form from a template of sessions, and says how a session is opened. Pure."""

from __future__ import annotations

import re
import shlex
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Final

from fairlead.frozen import frozen
from fairlead.serve.admission import sessiontemplate
from fairlead.serve.admission.sessiontemplate import Template
from fairlead.serve.v1.containers.view import ContainerView

_PORT: Final = re.compile(r"(?:(?P<address>.*):)?(?P<host>[0-9]+)->(?P<container>[0-9]+)/tcp")
_EVERY: Final = frozenset({"", "0.0.0.0", "[::]"})  # noqa: S104  (what a container's port listens on)
_LOOPBACK: Final = frozenset({"127.0.0.1", "[::1]", "localhost"})


@frozen
class Entry:
    """How a session is opened."""

    command: str
    """On a machine of the person's, with the command line."""
    address: str
    """Of its page, where a port of the machine leads to it; empty: none does."""
    token_file: str
    """Of the container; empty: its page has no token."""
    has_page: bool


def filled(template: Template, name: str = "") -> dict[str, str]:
    """Return the fields of the submit form for a session, as `fairlead notebook` and `fairlead shell` make it."""
    made = sessiontemplate.container(template, name=name or template.name)
    return {
        "image": made.image,
        "name": made.name,
        "gpus": str(made.gpus or 0),
        "command": shlex.join(made.command),
        "memory": str(made.memory or ""),
        "cpu": str(made.cpu or ""),
        "labels": "\n".join(f"{key}={value}" for key, value in made.labels.items()),
        "volumes": "\n".join(f"{one.name}:{one.container_path}" for one in made.volumes),
        "restart": made.restart,
        "template": template.name,
    }


def entry(one: ContainerView, templates: Iterable[Template], *, host: str, space: str = "") -> Entry | None:
    """Return how a session is opened; None: the container is none, or does not run.

    Args: host: of the console's address, as the browser has it.   space: what people call its namespace.
    """
    name = one.labels.get(sessiontemplate.LABEL, "")
    template = next((each for each in templates if each.name == name), None)
    if template is None or one.state != "running":
        return None
    verb = "notebook" if template.port else "shell"
    where = f" -T {shlex.quote(space)}" if space else f" -n {shlex.quote(one.namespace)}"
    where = "" if one.namespace == "default" else where
    own = "" if template.name == verb else f" --template {shlex.quote(template.name)}"
    published = _published(one.ports, template.port, host)
    path = urllib.parse.urlsplit(template.path)
    query = "" if "{token}" in path.query else path.query
    shown = urllib.parse.quote(urllib.parse.urlunsplit(("", "", path.path, query, "")), safe="/?=&%")
    return Entry(
        command=f"fairlead {verb}{where}{own} {shlex.quote(one.name)}",
        address=f"http://{published}{shown}" if published and "{token}" not in path.path else "",
        token_file=sessiontemplate.token_file(template),
        has_page=bool(template.port),
    )


def _published(ports: Iterable[str], wanted: int, host: str) -> str:
    """Return the address by which the browser's machine reaches a port of the container; empty: none."""
    for text in ports:
        found = _PORT.fullmatch(text)
        if found is None or not wanted or int(found["container"]) != wanted:
            continue
        address = found["address"] or ""
        if address in _EVERY:
            return f"{host}:{found['host']}"
        if address not in _LOOPBACK or host in _LOOPBACK:
            return f"{address}:{found['host']}"
    return ""


def named(templates: Iterable[Template]) -> Mapping[str, Template]:
    """Return templates by name."""
    return {one.name: one for one in templates}
