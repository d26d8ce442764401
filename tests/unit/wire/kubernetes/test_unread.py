from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.wire.kubernetes import manifest

_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"


def _read(text: str) -> tuple[tuple[manifest.Manifest, ...], tuple[str, ...]]:
    found = manifest.parse(text)
    return found, manifest.check_carried_out(found)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "  containers: [{name: c, comand: [a]}]",
            'containers[0].comand: unknown field, did you mean "command"?',
        ),
        ("  contaners: []", 'spec.contaners: unknown field, did you mean "containers"?'),
        ("  zzz: 1", "spec.zzz: unknown field"),
        (
            "  containers: [{name: c, volumeDevices: [{name: v, devicePath: /dev/x}]}]",
            "volumeDevices: is not",
        ),
        (
            "  containers: [{name: c, env: [{name: A, valueFrom: {fileKeyRef: {path: b}}}]}]",
            "fileKeyRef: is not carried out",
        ),
        ("  containers: [{name: c, livenessProbe: {exce: {}}}]", 'unknown field, did you mean "exec"?'),
    ],
)
def test_a_field_that_may_not_be_left_out_is_refused_by_its_path(spec: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        _read(_POD + spec)
    assert says in caught.value.message


def test_fields_of_a_cluster_that_a_machine_has_no_use_for_are_listed() -> None:
    spec = "  hostUsers: true\n  containers: [{name: c, stdinOnce: true, securityContext: {privileged: true}}]"
    pods, ignored = _read(_POD + spec)
    assert len(pods) == 1
    assert ignored == (
        "spec.hostUsers",
        "spec.containers[0].stdinOnce",
        "spec.containers[0].securityContext.privileged",
    )


def test_of_several_pods_each_is_named() -> None:
    one = _POD + "  enableServiceLinks: true\n  containers: []\n"
    assert _read(f"{one}---\n{one.replace('name: a', 'name: b')}")[1] == (
        "a: spec.enableServiceLinks",
        "b: spec.enableServiceLinks",
    )


def test_what_kubectl_prints_of_a_running_pod_is_read() -> None:
    text = _POD.replace("{name: a}", "{name: a, uid: u, resourceVersion: '1', managedFields: []}")
    spec = "  dnsPolicy: ClusterFirst\n  enableServiceLinks: true\n  containers: []\n"
    status = "status: {phase: Running, hostIP: 1.2.3.4}"
    assert _read(text + spec + status)[0][0].item.metadata.name == "a"
