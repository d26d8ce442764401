"""No way in is left out of the fuzz: a route, a verb or a controller's kind without a door fails here."""

from __future__ import annotations

from fairlead.cli.verbs import VERBS
from tests.fuzz import test_doors
from tests.fuzz.doors import api, cli, scheduling


def test_every_verb_is_fed_or_says_why_not() -> None:
    assert set(VERBS) - cli.fed() == set(cli.UNFED)


def test_every_route_with_a_body_has_a_door() -> None:
    routes = {
        (method.upper(), path.replace("{name}", "").replace("{port}", "8888"))
        for path, item in api.document()["paths"].items()
        for method, operation in item.items()
        if "requestBody" in operation
    }
    fed = {(method, path.partition("?")[0].replace("held", "").replace("/team", "/")) for method, path, _ in api.BODIES}
    manifests = {
        ("POST", "/v1/pods"),
        ("PUT", "/v1/quotas"),
        ("POST", "/v1/apply"),
        ("POST", "/v1/delete"),
    }  # read as they are, so that their description has no body
    assert fed == routes | manifests


def test_every_call_of_the_extender_has_a_door() -> None:
    names = {door.name for door in test_doors.DOORS}
    assert {f"extender, {path}" for path in scheduling.CALLS} <= names


def test_doors_have_names_of_their_own() -> None:
    names = [door.name for door in test_doors.DOORS]
    assert len(names) == len(set(names))
