"""`fairlead run --claim`, `--device-class` and `--where`, against a live service on a real unix socket."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fairlead import errors
from fairlead.cli.container.start import claimflags
from tests.unit.cli.conftest import Service

_OBJECTS = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mine}
spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu, count: 2}}]}}}
"""


def test_a_dry_run_prints_the_claim_that_would_be_made(service: Service) -> None:
    told = service.fairlead(
        *("run", "--dry-run", "-g", "2", "--where", "model=H100,memory>=40Gi,numa=same", "--name", "train", "demo")
    )
    assert told.exit_code == 0, told.stderr
    claim, _, rest = told.stdout.partition("train would be accepted")
    found = yaml.safe_load(claim)
    assert found["kind"] == "ResourceClaim"
    assert found["metadata"] == {"generateName": "train-gpus-", "namespace": "default"}
    (request,) = found["spec"]["devices"]["requests"]
    assert (request["exactly"]["deviceClassName"], request["exactly"]["count"]) == ("gpu.nvidia.com", 2)
    assert "asking for the devices of claim gpus" in rest
    assert "no driver publishes devices (no ResourceSlice)" in rest


def test_claims_and_templates_that_are_there_are_named(service: Service, tmp_path: Path) -> None:
    (tmp_path / "objects.yaml").write_text(_OBJECTS)
    assert service.fairlead("run", "-d", "-f", str(tmp_path / "objects.yaml")).exit_code == 0
    told = service.fairlead("run", "--dry-run", "--claim", "mine", "--claim", "gpus=two", "demo")
    assert "asking for the devices of claim mine, the devices of claim gpus" in told.stdout
    refused = service.fairlead("run", "-d", "--claim", "nosuch", "demo")
    assert (refused.exit_code, 'ResourceClaim "nosuch" is not there' in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--where", "modle=H100"), "did you mean model?"),
        (("--where", "model=H100", "-g", "all"), "is not a number of devices"),
        (("--where", "model=H100", "-g", "nvidia.com/gpu=1"), "is not a number of devices"),
        (("--where", "model=H100", "-g", "1", "-g", "2"), "more than once"),
        (("--device-class", "gpu", "--gpu-memory", "8Gi"), "part of one GPU"),
        (("--claim", ""), "neither a claim nor NAME=TEMPLATE"),
        (("--claim", "=two"), "neither a claim nor NAME=TEMPLATE"),
        (("--claim", "gpus="), "neither a claim nor NAME=TEMPLATE"),
    ],
)
def test_options_that_no_claim_can_mean_are_refused(service: Service, words: tuple[str, ...], said: str) -> None:
    refused = service.fairlead("run", "-d", *words, "demo")
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_a_claim_without_a_template_is_one_that_is_there() -> None:
    assert [(one.name, one.template) for one in claimflags.claims(("mine", "a=b"))] == [("mine", ""), ("a", "b")]
    with pytest.raises(errors.Invalid):
        claimflags.claims(("=",))
