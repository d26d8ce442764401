"""Lists what is photographed: every page that the console's routes serve, and states of them worth a look. Pure.

A house test holds the list to the routes: a page that nobody lists fails it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WIDTHS: Final = (390, 768, 1280, 1680)
"""CSS pixels: a phone, a tablet, a laptop, a desk."""
SCHEMES: Final = ("light", "dark")
ADMINISTRATOR, OWNER, NEWCOMER, NOBODY = "op", "ann", "eve", ""
"""Who looks: accounts of the story; the newcomer owns a tenancy in which nothing was made yet."""


@dataclass(frozen=True)
class Shown:
    """A page, and who looks at it."""

    name: str
    """Of its pictures' files."""
    path: str
    """Address below /console; `{gpu}` and the like are places of the story."""
    says: str
    """For the gallery: what is on it."""
    who: str = ADMINISTRATOR
    tab: str = ""
    """Fragment of the tab that is open; empty: the first."""


SHOWN: Final = (
    Shown("login", "/login", "the login", NOBODY),
    Shown("overview", "/", "GPUs, who holds each, load of the last hour"),
    Shown("overview-empty", "/", "the overview of a tenancy in which nothing runs", NEWCOMER),
    Shown("containers", "/containers", "containers that run, wait, failed and ended"),
    Shown("containers-empty", "/containers", "no containers yet", NEWCOMER),
    Shown("container", "/containers/{vision}/train", "one that runs: its output"),
    Shown("container-terminal", "/containers/{vision}/train", "its terminal, not opened", tab="terminal-tab"),
    Shown("container-metrics", "/containers/{vision}/train", "figures over time", tab="metrics"),
    Shown("container-gpus", "/containers/{vision}/train", "the GPU path", tab="gpus"),
    Shown("container-events", "/containers/{vision}/train", "events and start-up time", tab="events"),
    Shown("container-details", "/containers/{vision}/train", "command, variables, cost", tab="details"),
    Shown("container-waits", "/containers/default/sweep", "one that waits, and for whom"),
    Shown("container-failed", "/containers/default/broken", "one that failed"),
    Shown("run", "/run", "the form of a container", OWNER),
    Shown("run-notebook", "/run?template=notebook", "the form, begun with a template", OWNER),
    Shown("queue", "/queue", "who waits for what, and shares of queues"),
    Shown("queue-empty", "/queue", "nothing waits", NEWCOMER),
    Shown("reservations", "/reservations?week={week}&zone=UTC", "a week of reservations"),
    Shown("claims", "/claims", "ResourceClaims"),
    Shown("claims-empty", "/claims", "no claims", NEWCOMER),
    Shown("claim", "/claims/default/two-gpus", "one claim"),
    Shown("volumes", "/volumes", "volumes and who mounts them"),
    Shown("volumes-empty", "/volumes", "no volumes yet", NEWCOMER),
    Shown("secrets", "/secrets", "secrets, never a value"),
    Shown("secrets-empty", "/secrets", "no secrets yet", NEWCOMER),
    Shown("tenancies", "/tenancies", "tenancies, their quota and use"),
    Shown("tenancies-owner", "/tenancies", "the same for an owner", OWNER),
    Shown("tenancy", "/tenancies/vision", "one tenancy: quota, isolation, members"),
    Shown("tenancy-owner", "/tenancies/vision", "the same for its owner", OWNER),
    Shown("accounts", "/accounts", "people and programs"),
    Shown("quotas", "/quotas", "quotas of namespaces"),
    Shown("quota", "/quotas/default/gpus", "one quota"),
    Shown("usage", "/usage", "GPU hours and what they cost"),
    Shown("budgets", "/budgets", "budgets of a month"),
    Shown("keys", "/keys", "API keys"),
    Shown("sshkeys", "/sshkeys", "SSH keys", OWNER),
    Shown("notices", "/notices", "what a person is told, and where", OWNER),
    Shown("notices-empty", "/notices", "no notices yet", NEWCOMER),
    Shown("notice", "/notices/{notice}", "one notice and its deliveries", OWNER),
    Shown("webhooks", "/webhooks", "webhooks"),
    Shown("webhooks-empty", "/webhooks", "no webhooks yet", NEWCOMER),
    Shown("webhook", "/webhooks/{webhook}", "one webhook and its deliveries"),
    Shown("machine", "/machine", "nodes and the ledger"),
    Shown("queues", "/queues", "queues"),
    Shown("queue-one", "/queues/research", "one queue"),
    Shown("events", "/events", "what happened"),
    Shown("audit", "/audit", "who changed what"),
    Shown("gpu", "/gpus/{gpu}", "one GPU over time"),
    Shown("search", "/search?q=tr", "what a word finds"),
    Shown("search-empty", "/search", "before anything is looked for"),
    Shown("problem", "/nix", "an address that is no page"),
)
NO_TEMPLATE: Final = {
    "bare.html": "the frame's outer half",
    "base.html": "the frame",
    "macros.html": "parts",
    "queueform.html": "a part of queues and of one",
    "weekgrid.html": "a part of reservations",
    "opening.html": "shown for the moment in which a tab is led to a container's port",
}
"""Templates that are no page to be photographed, and why."""
_HOLE: Final = re.compile(r"\\\{[a-z]+(?::str)?\\\}")


def route_of(page: Shown, routes: Iterable[str]) -> str:
    """Return the route that serves a page; empty: none does. Args: routes: `/console/tenancies/{name:str}`."""
    path = f"/console{page.path.partition('?')[0]}".rstrip("/")
    fitting = [one for one in routes if re.fullmatch(_HOLE.sub("[^/]+", re.escape(one)), path)]
    return min(fitting, key=lambda one: one.count("{"), default="")


def missing(routes: Iterable[str]) -> list[str]:
    """Return the routes of which no picture is taken."""
    every = sorted(routes)
    return sorted(set(every) - {route_of(page, every) for page in SHOWN})


def file_name(page: Shown, width: int, scheme: str) -> str:
    """Return the file of a kept picture."""
    return f"{page.name}-{width}-{scheme}.webp"
