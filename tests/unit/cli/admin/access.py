"""What components may ask of the API server: by their roles, and by the page that says why."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[4]
_VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}


def granted(found: tuple[dict[str, Any], ...], who: str) -> set[tuple[str, str]]:
    """Return (verb, resource) of the component's roles."""
    roles = [
        item for item in found if item["kind"] in {"ClusterRole", "Role"} and item["metadata"]["name"].endswith(who)
    ]
    return {
        (verb, resource)
        for role in roles
        for rule in role["rules"]
        for verb, resource in itertools.product(rule["verbs"], rule["resources"])
    }


def documented(who: str) -> set[tuple[str, str]]:
    """Return (verb, resource) that docs/design/cluster-access.md says a component asks for."""
    rows = re.findall(
        r"^\| (\w+) \| ([a-z, ]+) \| ([a-z/]+)", (_ROOT / "docs/design/cluster-access.md").read_text(), re.M
    )
    asked = [
        (verbs.split(", "), resource)
        for name, verbs, resource in rows
        if name == who and set(verbs.split(", ")) <= _VERBS
    ]
    return {(verb, resource) for verbs, resource in asked for verb in verbs}
