"""The API's own contract: an OpenAPI 3.1 document whose every route, parameter, answer and error is described."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from fairlead import errors
from fairlead.serve.api import app as api_app
from fairlead.serve.v1 import app
from fairlead.wire.fairlead import problem
from tests.unit.serve.world import World, in_process

_ROUTES = {
    ("post", "/v1/apply"),
    ("post", "/v1/delete"),
    ("get", "/v1/objects/{kind}"),
    ("delete", "/v1/objects/{kind}/{name}"),
    ("post", "/v1/objects/{kind}/{name}:scale"),
    ("post", "/v1/objects/{kind}/{name}:restart"),
    ("post", "/v1/objects/{kind}/{name}:undo"),
    ("post", "/v1/objects/{kind}/{name}:pause"),
    ("post", "/v1/objects/{kind}/{name}:resume"),
    ("get", "/v1/status"),
    ("post", "/v1/gpus:end-neighbours"),
    ("get", "/v1/gpus/metrics"),
    ("get", "/v1/gpus/{gpu}/metrics"),
    ("get", "/v1/containers/{name}/metrics"),
    ("get", "/v1/keys"),
    ("post", "/v1/keys"),
    ("get", "/v1/keys/{name}"),
    ("post", "/v1/keys/{name}:revoke"),
    ("post", "/v1/keys/{name}:rotate"),
    ("get", "/v1/sshkeys"),
    ("post", "/v1/sshkeys"),
    ("get", "/v1/sshkeys/{name}"),
    ("delete", "/v1/sshkeys/{name}"),
    ("get", "/v1/ssh"),
    ("get", "/v1/templates"),
    ("post", "/v1/containers/{name}/ports/{port}/door"),
    ("get", "/v1/self"),
    ("get", "/v1/session"),
    ("post", "/v1/session"),
    ("delete", "/v1/session"),
    ("get", "/v1/oidc/login"),
    ("get", "/v1/notices"),
    ("post", "/v1/notices"),
    ("get", "/v1/notices/{name}"),
    ("delete", "/v1/notices/{name}"),
    ("post", "/v1/notices/{name}:test"),
    ("post", "/v1/notices/{name}:confirm"),
    ("get", "/v1/webhooks"),
    ("post", "/v1/webhooks"),
    ("get", "/v1/webhooks/{name}"),
    ("delete", "/v1/webhooks/{name}"),
    ("post", "/v1/webhooks/{name}:test"),
    ("get", "/v1/oidc/callback"),
    ("post", "/v1/oidc/device"),
    ("post", "/v1/oidc/device:finish"),
    ("get", "/v1/tenancies/{name}/members"),
    ("delete", "/v1/tenancies/{name}/members/{account}"),
    ("get", "/v1/tenancies/{name}/members/{account}"),
    ("put", "/v1/tenancies/{name}/members/{account}"),
    ("get", "/v1/users"),
    ("post", "/v1/users"),
    ("get", "/v1/users/{name}"),
    ("delete", "/v1/users/{name}"),
    ("get", "/v1/gpus"),
    ("get", "/v1/topology"),
    ("get", "/v1/nodes"),
    ("get", "/v1/capacity"),
    ("get", "/v1/events"),
    ("get", "/v1/containers"),
    ("post", "/v1/containers"),
    ("post", "/v1/pods"),
    ("put", "/v1/quotas"),
    ("get", "/v1/queues"),
    ("get", "/v1/tenancies"),
    ("get", "/v1/audit"),
    ("get", "/v1/baselines"),
    ("post", "/v1/baselines:approve"),
    ("post", "/v1/baselines:forget"),
    ("get", "/v1/leases"),
    ("post", "/v1/leases:quarantine"),
    ("post", "/v1/leases:release"),
    ("get", "/v1/usage"),
    ("get", "/v1/budgets"),
    ("get", "/v1/tenancies/{name}/budget"),
    ("put", "/v1/tenancies/{name}/budget"),
    ("delete", "/v1/tenancies/{name}/budget"),
    ("get", "/v1/usage/focus"),
    ("get", "/v1/usage/check"),
    ("post", "/v1/tenancies"),
    ("get", "/v1/tenancies/{name}"),
    ("patch", "/v1/tenancies/{name}"),
    ("delete", "/v1/tenancies/{name}"),
    ("put", "/v1/tenancies/{name}/registry"),
    ("delete", "/v1/tenancies/{name}/registry"),
    ("get", "/v1/tenancies/{name}/wait"),
    ("post", "/v1/tenancies/{name}:suspend"),
    ("post", "/v1/tenancies/{name}:resume"),
    ("post", "/v1/tenancies/{name}:test"),
    ("put", "/v1/queues/{name}"),
    ("get", "/v1/queues/{name}"),
    ("delete", "/v1/queues/{name}"),
    ("get", "/v1/secrets"),
    ("post", "/v1/secrets"),
    ("get", "/v1/secrets/{name}"),
    ("put", "/v1/secrets/{name}"),
    ("delete", "/v1/secrets/{name}"),
    ("get", "/v1/claims"),
    ("get", "/v1/claims/{name}"),
    ("delete", "/v1/claims/{name}"),
    ("get", "/v1/reservations"),
    ("post", "/v1/reservations"),
    ("get", "/v1/reservations/{name}"),
    ("delete", "/v1/reservations/{name}"),
    ("get", "/v1/reservations.ics"),
    ("get", "/v1/volumes"),
    ("post", "/v1/volumes"),
    ("get", "/v1/volumes/{name}"),
    ("delete", "/v1/volumes/{name}"),
    ("post", "/v1/volumes:prune"),
    ("get", "/v1/quotas"),
    ("get", "/v1/quotas/{name}"),
    ("delete", "/v1/quotas/{name}"),
    ("get", "/v1/containers/{name}"),
    ("delete", "/v1/containers/{name}"),
    ("post", "/v1/containers/{name}:stop"),
    ("post", "/v1/containers/{name}/ephemeralcontainers"),
    ("patch", "/v1/containers/{name}/status"),
    ("patch", "/v1/containers/{name}/resize"),
    ("post", "/v1/containers/{name}:rename"),
    ("post", "/v1/containers/{name}:attach"),
    ("post", "/v1/containers/{name}:detach"),
    ("get", "/v1/containers/{name}/wait"),
    ("get", "/v1/containers/{name}/logs"),
    ("get", "/v1/containers/{name}/events"),
    ("get", "/v1/containers/{name}/trace"),
    ("get", "/v1/containers/{name}/explain"),
    ("get", "/v1/containers/{name}/processes"),
    ("get", "/v1/containers/{name}/usage"),
    ("post", "/v1/containers/{name}:restart"),
    ("post", "/v1/containers/{name}:signal"),
    ("get", "/v1/images"),
    ("post", "/v1/images:prune"),
    ("post", "/v1/images:pull"),
    ("post", "/v1/images:tag"),
    ("delete", "/v1/images"),
    ("post", "/v1/images:import"),
    ("post", "/v1/images:build"),
    ("post", "/v1/faults"),
    ("get", "/healthz"),
    ("get", "/readyz"),
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return api_app.describe(app.create_app(World(tmp_path_factory.mktemp("api")).services))


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def test_a_public_validator_finds_nothing_wrong_with_it(document: dict[str, Any]) -> None:
    """As its readers get it, by JSON: there the keys of responses are texts."""
    read = json.loads(json.dumps(document))
    assert [error.message for error in openapi_spec_validator.OpenAPIV31SpecValidator(read).iter_errors()] == []
    assert set(read["components"]["securitySchemes"]) == {"key", "session"}
    assert read["security"][0] == {}  # on the unix socket the kernel says who connects


def test_it_is_openapi_3_1_with_every_route_and_no_other(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert {(method, path) for method, path, _ in _operations(document)} == _ROUTES
    assert set(document["info"]) >= {"title", "version"}


def test_every_operation_has_an_id_of_its_own_a_summary_and_a_description(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] and operation["description"] for _, _, operation in _operations(document))


def test_every_route_documents_its_errors_as_problems_and_nothing_else(document: dict[str, Any]) -> None:
    for method, path, operation in _operations(document):
        failures = {code: answer for code, answer in operation["responses"].items() if code >= "400"}
        assert "500" in failures, (method, path)
        for code, answer in failures.items():
            schema = answer["content"]["application/problem+json"]["schema"]
            assert schema["$ref"].endswith("/Problem"), (method, path, code)
            assert set(answer["content"]) == {"application/problem+json"}, (method, path, code)


def test_every_documented_status_is_one_the_error_table_can_give(document: dict[str, Any]) -> None:
    possible = {row.http for row in errors.TABLE.values()} | {500}
    given = {int(code) for _, _, it in _operations(document) for code in it["responses"] if code >= "400"}
    assert given <= possible


def test_every_parameter_of_a_path_is_declared(document: dict[str, Any]) -> None:
    for _, path, operation in _operations(document):
        declared = {item["name"] for item in operation.get("parameters", []) if item["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path)), path


def test_every_reference_leads_to_a_component(document: dict[str, Any]) -> None:
    found = set(_references(document))
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert found
    assert found <= known


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def test_nothing_of_the_services_behind_the_door_is_described(document: dict[str, Any]) -> None:
    text = str(document)
    assert "Services" not in text
    assert "MemoryStore" not in text


async def test_the_service_hands_it_out(tmp_path: Path, document: dict[str, Any]) -> None:
    transport = in_process(app.create_app(World(tmp_path).services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/v1/openapi.json")
    assert answer.json() == json.loads(json.dumps(document))


@pytest.mark.parametrize("kind", list(errors.TABLE), ids=lambda kind: kind.__name__)
def test_an_error_survives_its_way_over_the_wire(kind: type[errors.FairleadError]) -> None:
    sent = kind("it broke", reason="Broke", hint="mend it", gpu=3)
    received = problem.error_of(problem.problem_of(sent))
    assert type(received) is kind
    assert (received.message, received.reason, received.hint) == ("it broke", "Broke", "mend it")
    assert received.context == {"gpu": 3}
