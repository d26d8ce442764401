"""Deployments, StatefulSets, Jobs and CronJobs on one machine, in kubectl's words, with a service that is killed."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]

_WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: IMAGE
        command: [sleep, "1000"]
        env: [{name: VERSION, value: "1"}]
        resources: {limits: {nvidia.com/gpu: 1}}
"""


def _apply(service: Home, text: str, verb: str = "apply") -> Any:
    return service(verb, "-f", "-", stdin=text.replace("IMAGE", service.image), timeout_s=120)


def _objects(service: Home, kind: str) -> list[dict[str, Any]]:
    return list(json.loads(service.ok("get", kind, "-o", "json").out)["items"])


def _pods(service: Home) -> list[dict[str, Any]]:
    return [one for one in _objects(service, "pods") if not one["metadata"].get("deletionTimestamp")]


def test_a_deployment_is_applied_rolled_scaled_and_removed(service: Home) -> None:
    made = _apply(service, _WEB)
    assert (made.code, made.out) == (0, "deployment.apps/web created\n"), made.err
    done = service.ok("rollout", "status", "deployment/web", timeout_s=120)
    assert done.out.splitlines()[-1] == 'deployment "web" successfully rolled out'
    assert len(_pods(service)) == 2
    assert _apply(service, _WEB).out == "deployment.apps/web unchanged\n"

    changed = _WEB.replace('value: "1"', 'value: "2"')
    shown = _apply(service, changed, "diff")
    assert shown.code == 1
    assert "-        - name: VERSION" not in shown.out
    assert any(line.startswith("+") and "'2'" in line for line in shown.out.splitlines())
    assert _apply(service, changed).out == "deployment.apps/web configured\n"
    service.ok("rollout", "status", "deployment/web", timeout_s=120)
    values = {one["spec"]["containers"][0]["env"][0]["value"] for one in _pods(service)}
    assert values == {"2"}

    history = service.ok("rollout", "history", "deployment/web").out.splitlines()
    assert [line.split()[0] for line in history] == ["deployment.apps/web", "REVISION", "1", "2"]
    assert service.ok("rollout", "undo", "deployment/web").out == "deployment.apps/web rolled back\n"
    service.ok("rollout", "status", "deployment/web", timeout_s=120)
    assert {one["spec"]["containers"][0]["env"][0]["value"] for one in _pods(service)} == {"1"}
    service.ok("rollout", "undo", "deployment/web", "--to-revision", "2")
    service.ok("rollout", "status", "deployment/web", timeout_s=120)
    assert {one["spec"]["containers"][0]["env"][0]["value"] for one in _pods(service)} == {"2"}

    service.ok("scale", "deployment/web", "--replicas", "3")
    service.ok("rollout", "status", "deployment/web", timeout_s=120)
    before = {one["metadata"]["uid"] for one in _pods(service)}
    assert len(before) == 3
    assert service.ok("rollout", "restart", "deployment/web").out == "deployment.apps/web restarted\n"
    service.ok("rollout", "status", "deployment/web", timeout_s=120)
    assert not before & {one["metadata"]["uid"] for one in _pods(service)}

    table = service.ok("get", "deployments").out.splitlines()
    assert table[0].split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert table[1].split()[:4] == ["web", "3/3", "3", "3"]
    assert _apply(service, changed, "delete").out == 'deployment.apps "web" deleted\n'
    service.until(lambda: not _objects(service, "pods"), what="its pods are gone", timeout_s=60)
    service.until(lambda: service.free_gpus() == 8, what="its GPUs are free", timeout_s=60)


def test_a_stateful_set_s_pods_keep_their_names_and_volumes(service: Home) -> None:
    text = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: IMAGE
        command: [sh, -c, "hostname >> /data/seen; sleep 1000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
    made = _apply(service, text)
    assert made.code == 0, made.err
    service.ok("rollout", "status", "statefulset/db", timeout_s=120)
    assert [one["metadata"]["name"] for one in _pods(service)] == ["db-0", "db-1"]
    service.ok("delete", "pod", "db-0", timeout_s=60)
    service.ok("rollout", "status", "statefulset/db", timeout_s=120)
    seen = service.ok("exec", "db-0", "--", "cat", "/data/seen").out
    assert seen == "db-0\ndb-0\n"
    service.ok("delete", "sts/db", timeout_s=60)
    service.until(lambda: not _objects(service, "pods"), what="its pods are gone", timeout_s=60)
    assert [one["metadata"]["name"] for one in _objects(service, "pvc")] == ["data-db-0", "data-db-1"]
    service.ok("delete", "pvc", "--all", timeout_s=60)


_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completionMode: Indexed
  completions: 6
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: IMAGE
        command: [sh, -c, "echo shard $JOB_COMPLETION_INDEX; sleep 1"]
        resources: {limits: {nvidia.com/gpu: 1}}
"""


def _is_over(service: Home, name: str) -> bool:
    job = next(one for one in _objects(service, "jobs") if one["metadata"]["name"] == name)
    return any(one["type"] in {"Complete", "Failed"} for one in job["status"].get("conditions", ()))


def test_a_service_that_is_killed_loses_no_completion_and_runs_never_too_many(service: Home) -> None:
    made = _apply(service, _JOB)
    assert made.code == 0, made.err
    deadline = time.monotonic() + 240
    kills = 0
    while True:
        assert time.monotonic() < deadline
        alive = [one for one in _objects(service, "pods") if one["status"].get("phase") not in {"Succeeded", "Failed"}]
        assert len(alive) <= 2
        if _is_over(service, "train"):
            break
        if kills < 3 and alive:
            service.kill()
            assert service.process is not None
            service.process.wait(30)
            service.up()
            kills += 1
    (job,) = _objects(service, "jobs")
    assert (job["status"]["succeeded"], job["status"]["completedIndexes"]) == (6, "0-5"), job["status"]
    assert kills == 3
    pods = _objects(service, "pods")
    shards = sorted(service.ok("logs", one["metadata"]["name"]).out for one in pods)
    assert set(shards) == {f"shard {number}\n" for number in range(6)}
    service.ok("delete", "job", "train", timeout_s=60)
    service.until(lambda: not _objects(service, "pods"), what="its pods are gone", timeout_s=60)


def test_a_cron_job_makes_a_job_when_it_is_due(service: Home) -> None:
    text = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: IMAGE, command: [echo, tick]}]
"""
    assert _apply(service, text).code == 0
    service.until(
        lambda: any(one["status"].get("succeeded") == 1 for one in _objects(service, "jobs")),
        what="a job has run",
        timeout_s=120,
    )
    service.ok("delete", "cronjob", "tick", timeout_s=60)
    service.until(lambda: not _objects(service, "jobs"), what="its jobs are gone", timeout_s=60)


_SERVED = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: site}
spec:
  replicas: 1
  selector: {matchLabels: {app: site}}
  template:
    metadata: {labels: {app: site}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: IMAGE
        command: [sh, -c, "mkdir -p /www; hostname > /www/index.html; exec httpd -f -p 8000 -h /www"]
        ports: [{name: http, containerPort: 8000}]
        readinessProbe: {httpGet: {path: /index.html, port: http}, periodSeconds: 1, timeoutSeconds: 5}
---
apiVersion: v1
kind: Service
metadata: {name: site}
spec:
  type: NodePort
  selector: {app: site}
  ports: [{port: 80, targetPort: http}]
---
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "1000"]}]
"""


def test_a_service_s_name_leads_to_the_pods_that_serve_and_so_does_its_port_of_the_machine(service: Home) -> None:
    made = _apply(service, _SERVED)
    assert made.code == 0, made.err
    service.ok("rollout", "status", "deployment/site", timeout_s=120)
    service.until_state("caller", "running", timeout_s=60)

    # busybox is static and cannot ask for names itself: it reads what other programs resolve them by.
    address = "$(awk '/ site.default.svc /{print $1}' /etc/hosts)"

    def asked() -> str:
        return service("exec", "caller", "--", "sh", "-c", f"wget -qO - http://{address}/").out

    service.until(lambda: asked().startswith("site-"), what="the name leads to the pod", timeout_s=60)
    (found,) = _objects(service, "services")
    assert len(found["status"]["endpoints"]) == 1
    number = found["spec"]["ports"][0]["nodePort"]
    with urllib.request.urlopen(f"http://127.0.0.1:{number}/", timeout=10) as answer:
        assert answer.read().startswith(b"site-")

    before = asked()
    service.ok("rollout", "restart", "deployment/site")
    service.ok("rollout", "status", "deployment/site", timeout_s=120)
    service.until(lambda: asked().startswith("site-") and asked() != before, what="the new pod answers", timeout_s=60)
    service.ok("scale", "deployment/site", "--replicas", "0")
    service.until(
        lambda: "site" not in service.ok("exec", "caller", "--", "cat", "/etc/hosts").out,
        what="the name is gone with the last pod",
        timeout_s=60,
    )
