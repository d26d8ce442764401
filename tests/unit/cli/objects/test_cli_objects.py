"""kubectl's verbs against a live service on a real unix socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Service

_WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: demo, livenessProbe: {exec: {command: ["true"]}}}]}
"""
_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {word: hello}\n"
_SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {token: s3cret}\n"
_CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {}\n"
_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: solo}\nspec: {containers: [{name: main, image: demo}]}\n"


def test_apply_makes_what_is_written_once_and_says_what_it_did(service: Service) -> None:
    text = "---\n".join((_MAP, _SECRET, _CLAIM, _WEB, _POD))
    names = ["configmap/settings", "secret/key", "persistentvolumeclaim/data", "deployment.apps/web", "pod/solo"]
    first = service.fairlead("apply", "-f", "-", stdin=text)
    assert first.stdout.splitlines() == [f"{name} created" for name in names], first.stderr
    again = service.fairlead("apply", "-f", "-", stdin=text)
    assert again.stdout.splitlines() == [f"{name} unchanged" for name in names], again.stderr
    changed = service.fairlead("apply", "-f", "-", stdin=text.replace("hello", "bye").replace("s3cret", "other"))
    assert changed.stdout.splitlines()[:2] == ["configmap/settings configured", "secret/key configured"]


def test_a_priority_class_is_made_changed_or_left_as_it_is(service: Service) -> None:
    text = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: top}\nvalue: 1000\n"
    said = [
        service.fairlead("apply", "-f", "-", stdin=one).stdout for one in (text, text, text.replace("1000", "2000"))
    ]
    words = [line.split()[-1] for line in said]
    assert words == ["created", "unchanged", "configured"]


def test_a_disruption_budget_is_made_and_listed_and_a_wrong_one_refused(service: Service) -> None:
    text = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {selector: {}, minAvailable: 1"
    made = service.fairlead("apply", "-f", "-", stdin=text + "}\n")
    assert made.stdout == "poddisruptionbudget.policy/b created\n", made.stderr
    rows = service.fairlead("get", "pdb").stdout.splitlines()
    assert rows[1].split()[:4] == ["b", "1", "N/A", "0"]
    both = service.fairlead("apply", "-f", "-", stdin=text + ", maxUnavailable: 1}\n")
    assert "minAvailable and maxUnavailable cannot be both set" in both.stderr
    share = service.fairlead("apply", "-f", "-", stdin=text.replace("minAvailable: 1", "maxUnavailable: 1x") + "}\n")
    assert "spec.maxUnavailable" in share.stderr
    assert service.fairlead("delete", "pdb", "b").stdout == 'poddisruptionbudget.policy "b" deleted\n'


def test_a_folder_is_read_in_the_order_of_its_names_and_other_files_are_not(service: Service, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(_WEB)
    (tmp_path / "a.yml").write_text(_MAP)
    (tmp_path / "notes.txt").write_text("no manifest")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "below"}})
    )
    flat = service.fairlead("apply", "-f", str(tmp_path), "-o", "name")
    assert flat.stdout.splitlines() == ["configmap/settings", "deployment.apps/web"]
    deep = service.fairlead("apply", "-R", "-f", str(tmp_path), "-o", "name")
    assert "configmap/below" in deep.stdout
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no manifest" in service.fairlead("apply", "-f", str(empty)).stderr
    assert "cannot read" in service.fairlead("apply", "-f", str(tmp_path / "none.yaml")).stderr


def test_a_dry_run_and_a_diff_change_nothing(service: Service) -> None:
    dry = service.fairlead("apply", "--dry-run", "-f", "-", stdin=_MAP)
    assert dry.stdout == "configmap/settings created (server dry run)\n"
    service.fairlead("apply", "-f", "-", stdin=_MAP)
    assert service.fairlead("diff", "-f", "-", stdin=_MAP).exit_code == 0
    shown = service.fairlead("diff", "-f", "-", stdin=_MAP.replace("hello", "bye"))
    assert shown.exit_code == 1
    assert "-  word: hello" in shown.stdout
    assert "+  word: bye" in shown.stdout
    assert "word: hello" in service.fairlead("get", "cm", "settings", "-o", "yaml").stdout


def test_get_has_kubectl_s_columns_and_words(service: Service) -> None:
    service.fairlead("apply", "-f", "-", stdin="---\n".join((_MAP, _SECRET, _WEB)))
    table = service.fairlead("get", "deploy").stdout.splitlines()
    assert table[0].split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert table[1].split()[:2] == ["web", "0/2"]
    assert service.fairlead("get", "cm,deploy", "-o", "name").stdout.splitlines() == [
        "configmap/settings",
        "deployment.apps/web",
    ]
    assert service.fairlead("get", "deployment.apps/web", "-o", "name").stdout == "deployment.apps/web\n"
    assert service.fairlead("get", "jobs").stderr == "No resources found in default namespace.\n"
    assert service.fairlead("get", "deploy", "-l", "app=other").stderr.startswith("No resources found")
    missing = service.fairlead("get", "deploy", "none")
    assert missing.exit_code != 0
    assert 'deployments.apps "none" not found' in missing.stderr
    unknown = service.fairlead("get", "deploymens")
    assert 'did you mean "deployments"?' in unknown.stderr


def test_a_secret_s_values_are_never_shown(service: Service) -> None:
    service.fairlead("apply", "-f", "-", stdin=_SECRET)
    for form in ("json", "yaml"):
        shown = service.fairlead("get", "secret", "key", "-o", form).stdout
        assert "token" in shown
        assert "s3cret" not in shown
    assert service.fairlead("get", "secrets").stdout.splitlines()[1].split()[:3] == ["key", "Opaque", "1"]


def test_delete_takes_files_or_names_and_says_what_is_not_there(service: Service) -> None:
    service.fairlead("apply", "-f", "-", stdin="---\n".join((_MAP, _WEB, _SECRET)))
    done = service.fairlead("delete", "-f", "-", stdin="---\n".join((_MAP, _WEB)))
    assert done.stdout.splitlines() == ['deployment.apps "web" deleted', 'configmap "settings" deleted']
    again = service.fairlead("delete", "configmap", "settings")
    assert (again.exit_code != 0, 'configmap "settings" not found' in again.stderr) == (True, True)
    assert service.fairlead("delete", "cm", "settings", "--ignore-not-found").exit_code == 0
    assert service.fairlead("delete", "secret/key").stdout == 'secret "key" deleted\n'
    assert service.fairlead("delete", "cm").exit_code == 2


def test_scale_and_restart_change_the_object(service: Service) -> None:
    service.fairlead("apply", "-f", "-", stdin=_WEB)
    assert service.fairlead("scale", "deployment/web", "--replicas", "3").stdout == "deployment.apps/web scaled\n"
    assert service.fairlead("get", "deploy", "web").stdout.splitlines()[1].split()[1] == "0/3"
    assert service.fairlead("rollout", "restart", "deploy/web").stdout == "deployment.apps/web restarted\n"
    assert "restartedAt" in service.fairlead("get", "deploy", "web", "-o", "yaml").stdout
    assert service.fairlead("apply", "-f", "-", stdin=_WEB).stdout == "deployment.apps/web configured\n"
    refused = service.fairlead("scale", "configmap/settings", "--replicas", "3")
    assert "is not scaled" in refused.stderr
    late = service.fairlead("rollout", "status", "deployment/web", "--timeout", "1")
    assert "is not rolled out after 1 s" in late.stderr


def test_a_deployment_is_paused_and_not_rolled_back_to_what_is_not_kept(service: Service) -> None:
    service.fairlead("apply", "-f", "-", stdin=_WEB)
    assert service.fairlead("rollout", "pause", "deploy/web").stdout == "deployment.apps/web paused\n"
    paused = service.fairlead("rollout", "undo", "deploy/web")
    assert 'deployment "web" is paused' in paused.stderr
    assert service.fairlead("rollout", "resume", "deploy/web").stdout == "deployment.apps/web resumed\n"
    history = service.fairlead("rollout", "history", "deploy/web").stdout.splitlines()
    assert history[0] == "deployment.apps/web"
    none = service.fairlead("rollout", "undo", "deploy/web", "--to-revision", "7")
    assert "has no revision 7" in none.stderr
    assert service.fairlead("rollout", "undo", "deploy/none").exit_code != 0
    assert "is not rolled back" in service.fairlead("rollout", "undo", "statefulset/db").stderr
    assert "statefulsets keep no revisions" in service.fairlead("rollout", "history", "statefulset/db").stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_WEB.replace("image: demo", "image: 'A b'"), "couldn't parse image name"),
        (_WEB.replace("matchLabels: {app: web}", "matchLabels: {app: x}"), "does not match template `labels`"),
        (_WEB.replace("replicas: 2", "replica: 2"), 'did you mean "replicas"?'),
        (_WEB.replace("name: web,", "name: Web,"), "is not of lower case"),
        (_WEB.replace("kind: Deployment", "kind: DaemonSet"), "no kind 'DaemonSet'"),
        (
            _WEB.replace("labels: {app: web}}\nspec", "annotations: {fairlead.dev/tenant: x}}\nspec"),
            "only Fairlead itself",
        ),
        (_WEB.replace("{name: main,", "{name: main, volumeMounts: [{name: gone, mountPath: /x}],"), "Not found"),
    ],
)
def test_a_workload_that_is_wrong_is_refused_by_its_path(service: Service, text: str, words: str) -> None:
    result = service.fairlead("apply", "-f", "-", stdin=text)
    assert result.exit_code != 0
    assert words in result.stderr


def test_a_pod_that_is_there_does_not_change(service: Service) -> None:
    service.fairlead("apply", "-f", "-", stdin=_POD)
    refused = service.fairlead("apply", "-f", "-", stdin=_POD.replace("image: demo", "image: other"))
    assert "spec.containers: Forbidden" in refused.stderr
    assert "fairlead delete pod solo" in refused.stderr


def test_what_never_changes_in_a_job_is_refused(service: Service) -> None:
    job = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n"
        "      restartPolicy: Never\n      containers: [{name: main, image: demo}]\n"
    )
    assert service.fairlead("apply", "-f", "-", stdin=job).stdout == "job.batch/j created\n"
    refused = service.fairlead("apply", "-f", "-", stdin=job.replace("image: demo", "image: other"))
    assert "spec.template: Invalid value: field is immutable" in refused.stderr


def test_ports_of_the_machine_are_chosen_and_never_given_twice(service: Service) -> None:
    text = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
        "spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8000}]}\n"
    )
    service.fairlead("apply", "-f", "-", stdin=text)
    service.fairlead("apply", "-f", "-", stdin=text.replace("name: web", "name: api"))
    found = json.loads(service.fairlead("get", "svc", "-o", "json").stdout)["items"]
    assert sorted(one["spec"]["ports"][0]["nodePort"] for one in found) == [30000, 30001]
    taken = text.replace("name: web", "name: more").replace("{port: 80,", "{port: 80, nodePort: 30000,")
    assert "nodePort 30000 is allocated" in service.fairlead("apply", "-f", "-", stdin=taken).stderr


def test_a_name_that_no_file_can_have_and_a_kind_without_a_rollout_are_refused_in_words(service: Service) -> None:
    for name in ("9" * 5000, "é" * 3000):
        refused = service.fairlead("apply", "-f", name)
        assert (refused.exit_code, len(refused.stderr) < 2000) == (2, True)
        assert "cannot read" in refused.stderr
    assert "jobs are not rolled out" in service.fairlead("rollout", "status", "job/x").stderr
    assert len(service.fairlead("get", "pods", "-n", "x" * 70_000).stderr) < 2000
