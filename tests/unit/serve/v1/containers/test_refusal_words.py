"""What a container is refused for, in a person's words."""

from __future__ import annotations

import httpx
import pytest

from fairlead import errors
from fairlead.serve.v1.containers import refusal

_REGEX = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            'pods "more" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=2, '
            "used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=2",
            '"more" is more than the quota "q" allows: 2 GPUs asked, 1 of 2 in use',
        ),
        (
            'pods "demo-" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=32, '
            "used: pods=4,requests.cpu=3, limited: pods=4,requests.cpu=34",
            '"demo" is more than the quota "q" allows: 1 container asked, 4 of 4 in use; 32 CPUs asked, 3 of 34 in use',
        ),
        (
            'pods "a" is forbidden: failed quota: q: must specify requests.cpu for: main; requests.memory for: main',
            'the quota "q" counts cpu and memory, and the container says no amount of it',
        ),
    ],
)
def test_a_quota_says_what_is_asked_and_what_is_left(said: str, words: str) -> None:
    made = refusal.for_person(errors.Denied(said, reason="Forbidden", quota="q"))
    assert isinstance(made, errors.Denied)
    assert (made.message, made.reason, made.context) == (words, "Forbidden", {"quota": "q", "kubernetes": said})
    assert made.hint


def test_what_is_not_known_stays_as_it_is() -> None:
    error = errors.Denied("pods is forbidden: policy says no", reason="Forbidden")
    assert refusal.for_person(error) is error


def test_problems_that_are_not_known_stay_beside_those_that_are() -> None:
    problems = [f'spec.containers[0].resources.limits[memory]: Invalid value: "64 gigs": {_REGEX}', "spec.x: Required"]
    error = errors.Invalid('Pod "a" is invalid: both', reason="PodInvalid", problems=problems)
    assert refusal.for_person(error).message == 'memory "64 gigs" is not an amount; spec.x: Required'


@pytest.mark.parametrize(
    ("fields", "words", "hint"),
    [
        ({"name": "My Job"}, 'name "My Job" is not of lower case letters, digits, "-" and "."', 'for example "my-job"'),
        ({"memory": "64 gigs"}, 'memory "64 gigs" is not an amount', '"memory": "4Gi"'),
        ({"cpu": "many"}, 'cpu "many" is not an amount', '"cpu": "1.5"'),
        ({"namespace": "My Lab"}, 'namespace "My Lab" is not of lower case letters, digits and "-"', '"my-lab"'),
    ],
)
async def test_a_request_is_refused_with_its_value_and_the_next_step(
    api: httpx.AsyncClient, fields: dict[str, str], words: str, hint: str
) -> None:
    answer = await api.post("/v1/containers", json={"image": "demo", **fields})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert hint in answer.json()["hint"]
    assert not {"RFC 1123", "regular expression", "Pod "} & set(answer.json()["detail"].split(": "))
