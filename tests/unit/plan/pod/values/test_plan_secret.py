"""What pods take from Secrets: judged in the API server's words, resolved, and waited for."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.plan.pod.values import secret
from fairlead.plan.tenancy import baseline
from fairlead.plan.tenancy import secret as kept
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.source import KeySelector, KeyToPath
from fairlead.wire.kubernetes.pod.volume import SecretVolume

_DB = {"password": b"rosebud", "cert": b"one\ntwo\n"}
_HELD = {"db": _DB, "token": {"value": b"t"}}


def _from(name: str, key: str, *, optional: bool = False) -> core.EnvVarSource:
    return core.EnvVarSource(secret_key_ref=KeySelector(name=name, key=key, optional=optional))


def _container(**more: object) -> core.Container:
    return msgspec.convert({"name": "c", "image": "localhost/a", **more}, core.Container)


def _pod(volumes: list[object], **more: object) -> core.Pod:
    spec = {"containers": [{"name": "c", "image": "localhost/a", **more}], "volumes": volumes}
    return core.Pod(metadata=meta.ObjectMeta(name="p"), spec=msgspec.convert(spec, core.PodSpec))


def test_later_variables_go_before_earlier_ones_and_before_whole_secrets() -> None:
    item = _container(
        envFrom=[{"prefix": "DB_", "secretRef": {"name": "token"}}],
        env=[
            {"name": "A", "value": "plain"},
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
            {"name": "DB_value", "value": "own"},
        ],
    )
    assert secret.environment(item, _HELD, "n") == ({"DB_value": "own"}, {"A": "rosebud"})


@pytest.mark.parametrize(("name", "key"), [("none", "value"), ("db", "none")])
def test_a_container_waits_for_what_is_not_there_unless_it_may_do_without(name: str, key: str) -> None:
    item = core.Container(name="c", env=(core.EnvVar(name="A", value_from=_from(name, key)),))
    with pytest.raises(errors.NotFound) as refused:
        secret.environment(item, _HELD, "n")
    assert (refused.value.reason, "none" in refused.value.message) == ("CreateContainerConfigError", True)
    item = core.Container(name="c", env=(core.EnvVar(name="A", value_from=_from(name, key, optional=True)),))
    assert secret.environment(item, _HELD, "n") == ({}, {})


@pytest.mark.parametrize("value", [b"one\ntwo", b"\xff", b"a" * 60_001, b"a\0b"])
def test_a_variable_is_one_line_of_text_and_its_value_is_in_no_message(value: bytes) -> None:
    item = core.Container(name="c", env=(core.EnvVar(name="A", value_from=_from("s", "k")),))
    with pytest.raises(errors.Invalid) as refused:
        secret.environment(item, {"s": {"k": value}}, "n")
    assert len(errors.sentence(refused.value)) < 300
    assert "one" not in refused.value.message.removesuffix("and a variable is one line of text here").replace(
        "one l", ""
    )


def test_a_volume_has_the_keys_that_are_asked_for_where_they_are_asked_for() -> None:
    every = SecretVolume(secret_name="db", default_mode=0o440)
    assert secret.files(every, _HELD, "n") == (
        secret.File(path="cert", data=b"one\ntwo\n", mode=0o440),
        secret.File(path="password", data=b"rosebud", mode=0o440),
    )
    some = SecretVolume(secret_name="db", items=(KeyToPath(key="cert", path="tls/a.crt", mode=0o400),))
    assert secret.files(some, _HELD, "n") == (secret.File(path="tls/a.crt", data=b"one\ntwo\n", mode=0o400),)
    assert "rosebud" not in repr(secret.files(every, _HELD, "n"))
    assert secret.files(SecretVolume(secret_name="none", optional=True), _HELD, "n") == ()


@pytest.mark.parametrize(
    ("volumes", "container", "says"),
    [
        ([{"name": "v", "secret": {}}], {}, "secret.secretName: Required value"),
        ([{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "../x"}]}}], {}, "items[0].path"),
        ([{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "/x"}]}}], {}, "items[0].path"),
        ([{"name": "v", "secret": {"secretName": "s", "defaultMode": 4095}}], {}, "defaultMode: Invalid value"),
        (
            [{"name": "v", "secret": {"secretName": "s"}}],
            {"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "../../etc"}]},
            "subPath: Invalid value",
        ),
        ([], {"env": [{"name": "A", "valueFrom": {}}]}, "valueFrom: Required value"),
        ([], {"env": [{"name": "A", "value": "b", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "may n"),
        ([], {"env": [{"name": "A b", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "env[0].name"),
        ([], {"envFrom": [{}]}, "envFrom[0]: Required value"),
        ([], {"envFrom": [{"prefix": "#", "secretRef": {"name": "s"}}]}, "envFrom[0].prefix"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_its_path(
    volumes: list[object], container: dict[str, object], says: str
) -> None:
    with pytest.raises(errors.Invalid, match="spec") as refused:
        admission.admit(_pod(volumes, **container))
    assert says in refused.value.message


def test_registry_credentials_are_no_containers() -> None:
    with pytest.raises(errors.Denied):
        kept.refuse_reserved(_pod([{"name": "v", "secret": {"secretName": baseline.PULLS}}]))
    with pytest.raises(errors.Denied):
        kept.refuse_reserved(_pod([], envFrom=[{"secretRef": {"name": baseline.PULLS}}]))
    with pytest.raises(errors.Invalid):
        kept.check(baseline.PULLS, {"a": b"b"})


def test_a_digest_tells_values_apart_and_needs_the_salt() -> None:
    one = kept.digests({"a": b"x", "b": b"y"}, "salt")
    assert one["a"] != one["b"]
    assert one == kept.digests({"a": b"x", "b": b"y"}, "salt")
    assert one["a"] != kept.digests({"a": b"x"}, "other")["a"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom: Required value"),
        (
            {"env": [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]},
            "may not be specified when `value` is not empty",
        ),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}, "secretKeyRef.name: Required value"),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db"}}}]}, "secretKeyRef.key: Required value"),
        ({"env": [{"name": "A b", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]}, "env[0].name: Invalid"),
        ({"envFrom": [{}]}, "envFrom[0]: Required value"),
        ({"envFrom": [{"secretRef": {}}]}, "envFrom[0].secretRef.name: Required value"),
        ({"envFrom": [{"secretRef": {"name": "db"}, "prefix": "a b"}]}, "envFrom[0].prefix: Invalid value"),
        (
            {"volumeMounts": [{"name": "none", "mountPath": "/x", "subPath": "../a"}]},
            "volumeMounts[0].subPath: Invalid value",
        ),
    ],
)
def test_what_a_container_cannot_take_from_a_secret_is_named_by_its_path(item: dict[str, object], words: str) -> None:
    (found,) = secret.problems("spec.containers[0]", _container(**item))
    assert found.startswith("spec.containers[0].")
    assert words in found


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "secretName: Required value"),
        ({"secretName": "db", "defaultMode": 0o7777}, "defaultMode: Invalid value"),
        ({"secretName": "db", "items": [{"key": "", "path": "a"}]}, "items[0].key: Required value"),
        ({"secretName": "db", "items": [{"key": "k", "path": ""}]}, "items[0].path: Required value"),
        ({"secretName": "db", "items": [{"key": "k", "path": "../x"}]}, "items[0].path: Invalid value"),
        ({"secretName": "db", "items": [{"key": "k", "path": "a" * 256}]}, "a file system takes"),
        ({"secretName": "db", "items": [{"key": "k", "path": "a/" * 600 + "a"}]}, "a file system takes"),
        ({"secretName": "db", "items": [{"key": "k", "path": "x"}, {"key": "l", "path": "x/y"}]}, "nor lie below one"),
        ({"secretName": "db", "items": [{"key": "k", "path": "x/y"}, {"key": "l", "path": "x"}]}, "nor lie below one"),
        ({"secretName": "db", "items": [{"key": "k", "path": "a/./b"}, {"key": "l", "path": "a/b"}]}, "another item's"),
    ],
)
def test_what_is_wrong_with_a_volume_of_a_secret_is_named_by_its_path(source: dict[str, object], words: str) -> None:
    (found,) = secret.volume_problems("spec.volumes[0].secret", msgspec.convert(source, SecretVolume))
    assert words in found


def test_files_are_those_that_are_named_with_the_modes_that_are_named() -> None:
    items = (KeyToPath(key="cert", path="tls/cert", mode=0o400), KeyToPath(key="none", path="x"))
    source = SecretVolume(secret_name="db", items=items, default_mode=0o440)
    with pytest.raises(errors.NotFound, match="none"):
        secret.files(source, _HELD, "n")
    found = secret.files(msgspec.structs.replace(source, optional=True), _HELD, "n")
    assert [(one.path, one.data, one.mode) for one in found] == [("tls/cert", _DB["cert"], 0o400)]
    assert secret.files(SecretVolume(secret_name="gone", optional=True), _HELD, "n") == ()
    whole = secret.files(SecretVolume(secret_name="db"), _HELD, "n")
    assert [one.path for one in whole] == ["cert", "password"]


def test_what_a_volume_of_a_secret_lacks_is_named_by_its_field() -> None:
    source = SecretVolume(
        default_mode=0o1000,
        items=(KeyToPath(key="", path=""), KeyToPath(key="a b", path="../x", mode=-1)),
    )
    found = " ".join(secret.volume_problems("v", source))
    for field in ("v.secretName", "v.defaultMode", "items[0].key", "items[0].path", "items[1].key", "items[1].path"):
        assert field in found
    assert "v.items[1].mode" in found


def test_a_volume_of_many_items_is_judged_in_one_walk() -> None:
    items = tuple(KeyToPath(key="k", path=f"{n % 50}/{n}") for n in range(100_000))
    twice = SecretVolume(secret_name="s", items=(*items, KeyToPath(key="k", path="7"), items[3]))
    assert [one.partition(":")[0] for one in secret.volume_problems("v", twice)] == [
        "v.items[100000].path",
        "v.items[100001].path",
    ]
