from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.kubernetes import core, manifest

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: train
  labels: {app: train, tier: "1"}
  annotations:
spec:
  restartPolicy: Never
  affinity: {podAffinity: {}}
  containers:
  - name: main
    image: cuda:1
    command: ["nvidia-smi"]
    lifecycle: {}
    resources:
      limits:
        nvidia.com/gpu: 2
        cpu: 0.5
        memory: 1Gi
"""


def pod(spec: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n"


def test_a_pod_is_read_as_typed_and_as_written() -> None:
    (found,) = manifest.parse(POD)
    assert isinstance(found.item, core.Pod)
    assert found.item.metadata.labels == {"app": "train", "tier": "1"}
    assert found.item.spec.containers[0].resources.limits == {"nvidia.com/gpu": 2, "cpu": 0.5, "memory": "1Gi"}
    assert found.document["spec"]["affinity"] == {"podAffinity": {}}


def test_fields_that_nothing_reads_are_listed() -> None:
    (found,) = manifest.parse(POD)
    assert found.ignored == ("spec.affinity.podAffinity",)


def test_nulls_mean_not_given() -> None:
    (found,) = manifest.parse(POD)
    assert "annotations" not in found.document["metadata"]


def test_documents_come_in_order_and_empty_ones_are_skipped() -> None:
    text = "---\n" + POD + "\n---\n---\n# nothing\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n"
    assert [found.item.KIND for found in manifest.parse(text)] == ["Pod", "Namespace"]


def test_a_list_is_its_items() -> None:
    items = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in ("a", "b")]
    found = manifest.parse(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert [one.item.metadata.name for one in found] == ["a", "b"]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_read_too(indent: int | str | None) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    (found,) = manifest.parse(json.dumps(document, indent=indent).encode())
    assert found.document == document


def test_dates_stay_text() -> None:
    (found,) = manifest.parse("apiVersion: v1\nkind: Pod\nmetadata: {annotations: {day: 2020-01-01}}")
    assert found.item.metadata.annotations == {"day": "2020-01-01"}


def test_pods_only() -> None:
    assert [found.item.metadata.name for found in manifest.parse(POD, kinds=(core.Pod,))] == ["train"]
    with pytest.raises(errors.RequestError, match="Namespace") as refused:
        manifest.parse("apiVersion: v1\nkind: Namespace\n", kinds=(core.Pod,))
    assert refused.value.hint == "known: v1 Pod"


LISTED = "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, spec: 5}]"
ENV = "spec.containers[0].env[0].value"
ARGS = "spec.containers[1].args[1]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            pod("{containers: [{name: m, env: [{name: A, value: 1}]}]}"),
            f"{ENV}: expected a string, got a whole number (1)",
        ),
        (
            pod("{containers: [{name: m, env: [{name: A, value: yes}]}]}"),
            f"{ENV}: expected a string, got a boolean (true)",
        ),
        (pod("{containers: [{name: m}, {name: n, args: [a, 2.5]}]}"), f"{ARGS}: expected a string, got a number (2.5)"),
        (
            pod("{containers: [{name: m, resources: {limits: {cpu: 1, nvidia.com/gpu: true, memory: 1Gi}}}]}"),
            'spec.containers[0].resources.limits["nvidia.com/gpu"]: expected a number or a string, got a boolean',
        ),
        (
            pod("{nodeSelector: {good: x, gpu.dev/count: 8}}"),
            'spec.nodeSelector["gpu.dev/count"]: expected a string, got a whole number (8)',
        ),
        (pod("{nodeSelector: {good: x, bad: [y]}}"), "spec.nodeSelector.bad: expected a string, got a list"),
        (pod("{containers: [{image: i}]}"), "spec.containers[0].name: Required value"),
        (pod("{containers: {name: m}}"), "spec.containers: expected a list, got a map"),
        (pod("[]"), "spec: expected a map, got a list"),
        (
            pod("{terminationGracePeriodSeconds: 1.5}"),
            "spec.terminationGracePeriodSeconds: expected a whole number, got a number",
        ),
        (pod("{nodeSelector: {1: x}}"), "spec.nodeSelector: key 1 is a whole number, not a string"),
        (pod("{nodeSelector: {a: .nan}}"), "spec.nodeSelector.a: nan is not a number of JSON"),
        (pod("{nodeSelector: {a: !!binary aGk=}}"), "spec.nodeSelector.a: a bytes is not a value of JSON"),
        ("metadata: {name: p}", "apiVersion: Required value"),
        ("apiVersion: v1\nkind: 5", "kind: Required value"),
        (POD + "\n---\n" + pod("5"), "document 2: spec: expected a map, got a whole number"),
        (LISTED, "items[0]: spec: expected a map, got a whole number"),
    ],
)
def test_values_in_the_wrong_place_are_named_by_path(text: str, said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        manifest.parse(text)
    assert refused.value.message == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no object"),
        ("---\n---\n", "holds no object"),
        ("apiVersion: apps/v1\nkind: Deployment", "no kind 'Deployment' in version 'apps/v1'"),
        ("apiVersion: resource.k8s.io/v1alpha3\nkind: ResourceClaim", "no kind 'ResourceClaim' in version"),
        ("just text", "it is a string, not a map"),
        ("[1]", "it is a list, not a map"),
        ("apiVersion: v1\nkind: List\nitems: [5]", "items[0]: it is a whole number"),
        ("a: b: c", "line 1, column 5"),
        ("kind: Pod\nkind: Node", 'key "kind" already set at line 2, column 1'),
        ("{a: 1", "line 2, column 1"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: &a {b: c}\nd:\n  <<: *a", "merge keys (<<) are not supported at line 3"),
        ("? [a, b]\n: c", "unhashable"),
        ("a: \x07", "control characters are not allowed"),
        (b"\xff\xfe\xfa", "not UTF-8"),
        ("x" * (manifest.LARGEST_BYTES + 1), "the limit is"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    with pytest.raises(errors.RequestError) as refused:
        manifest.parse(text)
    assert said in refused.value.message


def test_a_version_that_articles_show_still_is_answered_with_what_took_its_place() -> None:
    shown = Path(__file__).parents[4] / "examples/articles/dra-workload.yaml"
    with pytest.raises(errors.RequestError) as refused:
        manifest.parse(shown.read_text())
    assert "write resource.k8s.io/v1" in (refused.value.hint or "")
    assert "below `exactly`" in (refused.value.hint or "")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", '{"a":'])
def test_deep_nesting_is_refused_and_not_followed(opening: str) -> None:
    with pytest.raises(errors.RequestError, match="deeper than 64"):
        manifest.parse(opening * 100_000)


def test_aliases_count_as_often_as_they_are_used() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    with pytest.raises(errors.RequestError, match="more than"):
        manifest.parse("\n".join(lines))


def test_a_value_inside_itself_is_refused() -> None:
    with pytest.raises(errors.RequestError, match="deeper"):
        manifest.parse("a: &a [*a]")


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
PLACES = ("metadata", "spec", "status", "labels", "containers", "name", "resources", "limits", "nodeSelector", "env")


@given(st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(PLACES), inner, max_size=4), max_leaves=10))
def test_any_json_is_read_or_refused(value: Any) -> None:
    body = value if isinstance(value, dict) else {"spec": value}
    try:
        (found,) = manifest.parse(json.dumps({**body, "apiVersion": "v1", "kind": "Pod"}))
    except errors.RequestError:
        return
    assert found.item.KIND == "Pod"


@pytest.mark.parametrize("place", ['"name":"a\\ud800"', '"labels":{"a\\ud800":"b"}', '"labels":{"a":"\\udc00"}'])
def test_half_a_character_is_refused_by_its_path(place: str) -> None:
    text = '{"apiVersion":"v1","kind":"Pod","metadata":{' + place + '},"spec":{"containers":[]}}'
    with pytest.raises(errors.Invalid, match=r"metadata.*is not a character"):
        manifest.parse(text)
