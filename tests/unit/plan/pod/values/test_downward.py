"""Fields of a pod as values: what each is, how files have it, and which are refused."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod.values import configmap, downward, secret, secretvalues, valuevolume
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.source import FieldSelector, ResourceFieldSelector

_POD = core.Pod(
    metadata=meta.ObjectMeta(
        name="p",
        namespace="n",
        uid="u",
        labels={"app": "web", "fairlead.dev/x": "y"},
        annotations={"note": 'two\nlines "x"\x01', "a/b": "c"},
    ),
    spec=msgspec.convert(
        {
            "nodeName": "node",
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}, {"name": "d"}],
        },
        core.PodSpec,
    ),
)
_FACTS = downward.Facts(pod_addresses=("10.0.0.2",), host_addresses=("192.0.2.9",), allocatable={"cpu": "8"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['a/b']", "c"),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "10.0.0.2"),
        ("status.hostIP", "192.0.2.9"),
    ],
)
def test_a_variable_has_the_field(field: str, value: str) -> None:
    assert downward.field_value(_POD, field, _FACTS) == value
    assert list(downward.field_problems("f", FieldSelector(field_path=field), is_file=False)) == []


def test_a_file_of_labels_has_a_line_for_each_and_none_of_our_own() -> None:
    assert downward.field_value(_POD, "metadata.labels", _FACTS) == 'app="web"'
    assert downward.field_value(_POD, "metadata.annotations", _FACTS) == 'a/b="c"\nnote="two\\nlines \\"x\\"\\x01"'


@pytest.mark.parametrize(
    ("resource", "container", "divisor", "value"),
    [
        ("limits.cpu", "", "", "2"),
        ("limits.cpu", "", "1m", "1500"),
        ("limits.memory", "", "1Mi", "1024"),
        ("requests.cpu", "", "1m", "1500"),
        ("limits.cpu", "d", "", "8"),
        ("requests.memory", "d", "", "0"),
    ],
)
def test_an_amount_is_counted_in_its_divisor_and_rounded_up(
    resource: str, container: str, divisor: str, value: str
) -> None:
    source = ResourceFieldSelector(resource=resource, container_name=container, divisor=divisor)
    assert list(downward.resource_problems("f", source, _POD.spec, is_file=False)) == []
    assert downward.resource_value(_POD.spec, _POD.spec.containers[0], source, _FACTS) == value


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"fieldPath": ""}, "f.fieldPath: Required value"),
        ({"fieldPath": "status.phase"}, "f.fieldPath: Unsupported value"),
        ({"fieldPath": "metadata.labels['a b']"}, "not a key of a label"),
        ({"fieldPath": "metadata.name", "apiVersion": "v2"}, "f.apiVersion: Invalid value"),
    ],
)
def test_a_field_that_no_pod_has_is_refused(source: dict[str, str], words: str) -> None:
    (found,) = downward.field_problems("f", msgspec.convert(source, FieldSelector), is_file=False)
    assert words in found


def test_a_pod_s_address_is_no_file_since_it_may_change() -> None:
    assert list(downward.field_problems("f", FieldSelector(field_path="status.podIP"), is_file=True))
    assert list(downward.field_problems("f", FieldSelector(field_path="metadata.labels"), is_file=True)) == []
    assert list(downward.field_problems("f", FieldSelector(field_path="metadata.labels"), is_file=False))


def test_an_amount_that_is_not_offered_is_refused() -> None:
    for one in ({"resource": "limits.gpu"}, {"resource": "limits.cpu", "divisor": "3"}, {"resource": "limits.cpu"}):
        source = msgspec.convert({**one, "containerName": "" if "divisor" in one else "none"}, ResourceFieldSelector)
        assert len(list(downward.resource_problems("f", source, _POD.spec, is_file=False))) == 1


def test_variables_come_from_maps_and_fields_in_the_order_of_the_list() -> None:
    item = msgspec.convert(
        {
            "name": "c",
            "envFrom": [{"prefix": "M_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}],
            "env": [
                {"name": "HOST", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "host"}}},
                {"name": "URL", "value": "http://$(HOST)/$(key)"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k", "optional": True}}},
            ],
        },
        core.Container,
    )
    given = secret.Given(maps={"m": {"host": "db $(X)"}}, fact=lambda _source: "node")
    plain, taken = secret.environment(item, {"s": {"key": b"k"}}, "n", given)
    assert plain == {"M_host": "db $(X)", "HOST": "db $(X)", "NODE": "node"}
    assert taken == {"key": "k", "URL": "http://db $(X)/k"}
    with pytest.raises(errors.NotFound, match='configmap "m" not found'):
        secret.environment(item, {"s": {"key": b"k"}}, "n")


def test_a_projected_volume_has_the_files_of_all_its_sources() -> None:
    volume = msgspec.convert(
        {
            "name": "v",
            "projected": {
                "defaultMode": 0o440,
                "sources": [
                    {"configMap": {"name": "m"}},
                    {"secret": {"name": "s", "items": [{"key": "k", "path": "tls/k", "mode": 0o400}]}},
                    {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                ],
            },
        },
        core.Volume,
    )
    assert list(valuevolume.problems("v", volume, _POD.spec)) == []
    found = valuevolume.files(_POD, volume, secrets={"s": {"k": b"1"}}, maps={"m": {"a": b"2"}}, facts=_FACTS)
    assert [(one.path, one.data, one.mode) for one in found] == [
        ("a", b"2", 0o440),
        ("tls/k", b"1", 0o400),
        ("labels", b'app="web"', 0o440),
    ]


def test_two_sources_may_not_have_the_same_file() -> None:
    one = {"configMap": {"name": "m", "items": [{"key": "a", "path": "x"}]}}
    volume = msgspec.convert({"name": "v", "projected": {"sources": [one, one, {}]}}, core.Volume)
    found = list(valuevolume.problems("v", volume, _POD.spec))
    assert [text.partition(":")[0] for text in found] == [
        "v.projected.sources[1].configMap.items[0].path",
        "v.projected.sources[2]",
    ]


def test_a_config_map_s_rules_are_the_api_server_s() -> None:
    good = core.ConfigMap(metadata=meta.ObjectMeta(name="m"), data={"a": "x"}, binary_data={"b": "AAE="})
    configmap.check(good)
    assert configmap.contents(good) == {"a": b"x", "b": b"\0\1"}
    for one in (
        {"data": {"a b": "x"}},
        {"data": {"..": "x"}},
        {"data": {"a": "x" * (1 << 20) + "x"}},
        {"data": {"a": "x"}, "binaryData": {"a": ""}},
        {"binaryData": {"a": "no"}},
        {"metadata": {"name": "A"}},
    ):
        with pytest.raises(errors.Invalid):
            configmap.check(msgspec.convert({"metadata": {"name": "m"}, **one}, core.ConfigMap))


def test_a_secret_of_a_manifest_may_be_given_as_text() -> None:
    item = core.Secret(metadata=meta.ObjectMeta(name="s"), data={"a": "eA==\n", "b": "eA=="}, string_data={"b": "y"})
    assert secretvalues.of_manifest(item) == {"a": b"x", "b": b"y"}
    with pytest.raises(errors.Invalid, match="not base64"):
        secretvalues.of_manifest(core.Secret(data={"a": "plain"}))
