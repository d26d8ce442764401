"""The chart's policy on configurations of claims, judged by a real API server: the cases of our own CEL's test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from fairlead import errors
from fairlead_cdi import yamltext
from tests.cluster import charts, node
from tests.unit.plan.dra.test_claim_policy import DRIVERS_ALONE, RIGHT, WRONG
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims?dryRun=All"
_CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses?dryRun=All"


@pytest.fixture(scope="module")
def server(cluster: home.Cluster) -> Iterator[api.API]:
    """The API server with the policy and its binding, and nothing else of the chart."""
    found = charts.render({"dra": {"enabled": True}})
    ours = [item for item in found if item["metadata"]["name"].endswith("-claim-configs")]
    assert sorted(item["kind"] for item in ours) == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    text = "".join(f"---\n{yamltext.dump(item)}" for item in ours)
    node.kubectl(cluster, "apply", "-f", "-", stdin=text)

    def checked(items: list[api.Object]) -> bool | None:
        done = [item for item in items if item["metadata"]["name"].endswith("-claim-configs")]
        done = [item for item in done if "typeChecking" in item.get("status", {})]
        assert [item["status"]["typeChecking"] for item in done if item["status"]["typeChecking"]] == []
        return True if done else None

    with cluster.api() as connection:
        connection.until(_POLICIES, checked, what="the policy is checked")
        deadline = time.monotonic() + 60
        while not _is_bound(connection):
            assert time.monotonic() < deadline, "the policy refuses nothing"
            time.sleep(0.2)
        yield connection
    node.kubectl(cluster, "delete", "-f", "-", "--wait", stdin=text, timeout_s=120)


def _is_bound(connection: api.API) -> bool:
    """Return whether the policy counts, which takes a moment after its binding is made."""
    try:
        connection.create(_CLAIMS, _claim(WRONG[0]))
    except errors.FairleadError:
        return True
    return False


def _devices(parameters: Any) -> dict[str, Any]:
    return {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
        "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}],
    }


def _claim(parameters: Any) -> dict[str, Any]:
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"generateName": "policy-"}}
    return {**about, "spec": {"devices": _devices(parameters)}}


@pytest.mark.parametrize("parameters", [*RIGHT, *DRIVERS_ALONE], ids=json.dumps)
def test_what_the_driver_reads_is_admitted(server: api.API, parameters: Any) -> None:
    assert server.create(_CLAIMS, _claim(parameters))["kind"] == "ResourceClaim"


@pytest.mark.parametrize("parameters", WRONG, ids=json.dumps)
def test_what_the_driver_refuses_is_refused_where_it_is_written(server: api.API, parameters: Any) -> None:
    with pytest.raises(errors.FairleadError, match="claim-configs"):
        server.create(_CLAIMS, _claim(parameters))


def test_a_class_is_judged_too(server: api.API) -> None:
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"generateName": "policy-"}}
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": WRONG[3]}}]
    with pytest.raises(errors.FairleadError, match="claim-configs"):
        server.create(_CLASSES, {**about, "spec": {"config": config}})
    other = [{"opaque": {"driver": "x.example.com", "parameters": {"a": 1}}}]
    assert server.create(_CLASSES, {**about, "spec": {"config": other}})["kind"] == "DeviceClass"
