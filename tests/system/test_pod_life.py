"""A manifest with sidecars, probes, hooks and values, carried out by real podman as its author wrote it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]

_WHOLE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {word: hello, server.conf: "listen 8080\\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {token: s3cret}
---
apiVersion: v1
kind: Pod
metadata: {name: whole, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 5
  hostAliases: [{ip: 10.9.8.7, hostnames: [db.local]}]
  initContainers:
  - name: log
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; touch /shared/log-up; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: [test, -e, /shared/log-up]}, periodSeconds: 1, failureThreshold: 30}
    volumeMounts: [{name: shared, mountPath: /shared}]
  - name: load
    image: IMAGE
    command: [sh, -c, "test -e /shared/log-up && echo model > /shared/model"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
  - name: main
    image: IMAGE
    resources: {limits: {nvidia.com/gpu: 1, memory: 64Mi}}
    ports: [{name: http, containerPort: 8080}]
    command:
    - sh
    - -c
    - |
      mkdir -p /www; echo ok > /www/index.html; cp /etc/app/server.conf /www/
      { env | sort; cat /shared/model /facts/labels; echo; cat /one/word; echo; grep db.local /etc/hosts; } > /www/seen
      trap 'cat /shared/bye; exit 0' TERM
      httpd -p 8080 -h /www
      while :; do sleep 0.1; done
    envFrom: [{prefix: CFG_, configMapRef: {name: settings, optional: true}}]
    env:
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: key, key: token}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    lifecycle:
      preStop: {exec: {command: [sh, -c, "echo stopped politely > /shared/bye"]}}
    startupProbe: {tcpSocket: {port: http}, periodSeconds: 1, failureThreshold: 60}
    readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 1, timeoutSeconds: 5}
    livenessProbe: {httpGet: {path: /index.html, port: http}, periodSeconds: 1, timeoutSeconds: 5}
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: app, mountPath: /etc/app}
    - {name: app, mountPath: /one/word, subPath: word}
    - {name: facts, mountPath: /facts}
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: app, configMap: {name: settings}}
  - name: facts
    projected:
      sources: [{downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]
"""


_NAMES = """
apiVersion: v1
kind: Pod
metadata: {name: names}
spec:
  terminationGracePeriodSeconds: 60
  hostnameOverride: worker.lab.local
  dnsPolicy: None
  dnsConfig: {nameservers: [10.0.0.53], searches: [lab.local], options: [{name: ndots, value: "2"}, {name: rotate}]}
  shareProcessNamespace: true
  securityContext: {supplementalGroups: [4321]}
  containers:
  - name: main
    image: IMAGE
    env: [{name: DAY, value: monday}]
    lifecycle: {stopSignal: SIGUSR1}
    command:
    - sh
    - -c
    - |
      trap 'echo told by a signal of its own; exit 0' USR1
      sh -c 'sleep 0 & exec true'  # leaves a child to process 1
      echo $DAY > /v/word
      while :; do sleep 0.1; done
    volumeMounts: [{name: v, mountPath: /v, subPathExpr: "days/$(DAY)"}]
  - {name: beside, image: IMAGE, command: [sleep, "1000"], volumeMounts: [{name: v, mountPath: /all}]}
  volumes: [{name: v, emptyDir: {}}]
"""


def test_a_pod_shares_names_processes_and_volumes_as_it_is_written(service: Home) -> None:
    assert _run(service, _NAMES).code == 0
    service.until_state("names", "running", timeout_s=60)

    def beside(*command: str) -> str:
        return service.ok("exec", "-c", "beside", "names", "--", *command).out

    service.until(lambda: "monday" in beside("ls", "/all/days"), what="the program has started", timeout_s=60)
    assert beside("cat", "/all/days/monday/word") == "monday\n"
    assert beside("hostname") == "worker.lab.local\n"
    resolver = [line.split() for line in beside("cat", "/etc/resolv.conf").splitlines() if line.strip()]
    assert ["nameserver", "10.0.0.53"] in resolver
    assert ["search", "lab.local"] in resolver
    assert {"ndots:2", "rotate"} <= {word for line in resolver if line[0] == "options" for word in line}
    assert "4321" in beside("id", "-G").split()
    first, *rest = (line.split(None, 3)[-1] for line in beside("ps").splitlines()[1:])
    assert first == "/pause"
    assert any("told by a signal" in line for line in rest)  # of the other container
    assert not any("Z" in line.split()[2:3] for line in beside("ps", "-o", "pid,ppid,stat").splitlines())

    started = time.monotonic()
    service.ok("stop", "names")
    service.until_state("names", "stopped", "succeeded", "failed", timeout_s=60)
    assert time.monotonic() - started < 50  # SIGTERM would be waited for: 60 s
    assert "told by a signal of its own" in service.ok("logs", "-c", "main", "names").out
    service.rm("names")


def test_an_init_reaps_for_one_container_as_dockers_does(service: Home) -> None:
    command = ("sh", "-c", "sh -c 'sleep 0 & exec true'; sleep 1000")
    service.ok("run", "-d", "--name", "reaped", "--init", "--group-add", "4321", service.image, "--", *command)
    service.until_state("reaped", "running", timeout_s=60)
    lines = service.ok("exec", "reaped", "--", "ps", "-o", "pid,stat,args").out.splitlines()[1:]
    assert lines[0].split() == ["1", "S", "/pause"]
    assert not any(line.split()[1].startswith("Z") for line in lines), lines
    assert "4321" in service.ok("exec", "reaped", "--", "id", "-G").out.split()
    service.rm("reaped")


def _run(service: Home, text: str, *options: str) -> Any:
    return service("run", "-d", "-f", "-", *options, stdin=text.replace("IMAGE", service.image))


def _pod(service: Home, name: str) -> dict[str, Any]:
    return dict(service.ask(f"/v1/containers/{name}"))


def _inspect(service: Home, name: str) -> str:
    return service.ok("inspect", name).out


def _in_main(service: Home, name: str, *command: str) -> str:
    return service.ok("exec", "-c", "main", name, "--", *command).out


def test_a_pod_of_every_part_lives_as_it_is_written(service: Home) -> None:
    made = _run(service, _WHOLE)
    assert (made.code, made.err) == (0, ""), made.err
    service.until_state("whole", "running", timeout_s=60)
    service.until(
        lambda: service("exec", "-c", "main", "whole", "--", "test", "-s", "/www/seen").code == 0,
        what="the program has started",
        timeout_s=60,
    )
    seen = _in_main(service, "whole", "cat", "/www/seen").splitlines()
    values = dict(line.split("=", 1) for line in seen if "=" in line)
    assert values["CFG_word"] == "hello"
    assert (values["TOKEN"], values["MEMORY"]) == ("s3cret", "64")
    assert values["NODE"]
    assert values["POD_IP"].count(".") == 3
    assert values["app"] == '"web"'
    assert {"model", "hello"} <= set(seen)
    assert any(line.split() == ["10.9.8.7", "db.local"] for line in seen)
    assert _in_main(service, "whole", "cat", "/www/server.conf") == "listen 8080\n"
    assert "s3cret" not in _inspect(service, "whole")

    _becomes_ready_and_is_started_again_when_it_is_dead(service)
    _is_stopped_politely_and_its_sidecar_last(service)


def _becomes_ready_and_is_started_again_when_it_is_dead(service: Home) -> None:
    assert not _is_ready(service, "whole")
    _in_main(service, "whole", "touch", "/www/ready")
    service.until(lambda: _is_ready(service, "whole"), what="it is ready", timeout_s=30)
    _in_main(service, "whole", "rm", "/www/index.html")
    service.until(lambda: _restarts(service, "whole") == 1, what="it is started again", timeout_s=60)
    events = service.ok("events", "whole").out
    assert "Liveness probe failed: HTTP probe failed with statuscode: 404" in events


def _is_stopped_politely_and_its_sidecar_last(service: Home) -> None:
    service.until_state("whole", "running", timeout_s=60)
    service.until(
        lambda: service("exec", "-c", "main", "whole", "--", "test", "-s", "/www/seen").code == 0,
        what="it runs again",
        timeout_s=60,
    )
    service.ok("stop", "whole")
    service.until_state("whole", "stopped", "succeeded", timeout_s=60)
    assert "stopped politely" in service.ok("logs", "-c", "main", "whole").out
    service.ok("rm", "-f", "whole")


def _status(service: Home, name: str) -> list[dict[str, Any]]:
    return list(_pod(service, name)["containers"])


def _is_ready(service: Home, name: str) -> bool:
    return all(one.get("ready") for one in _status(service, name))


def _restarts(service: Home, name: str) -> int:
    return max(int(one.get("restarts", 0)) for one in _status(service, name))


def test_probes_that_hang_fork_and_write_harm_nobody(service: Home) -> None:
    nasty = {
        "hang": ["sh", "-c", "sleep 1000"],
        "fork": ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do (sleep 1000 &) ; done; sleep 1000"],
        "flood": ["sh", "-c", "exec cat /dev/zero"],
    }
    for name, command in nasty.items():
        probe = {"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1000}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {"name": "main", "image": service.image, "command": ["sleep", "1000"], "readinessProbe": probe}
                ],
            },
        }
        assert _run(service, json.dumps(pod)).code == 0
    for name in nasty:
        service.until_state(name, "running", timeout_s=60)
    before = _memory(service)
    time.sleep(8)
    started = time.monotonic()
    service.start("beside", command=("sleep", "1000"))
    assert time.monotonic() - started < 30
    assert _memory(service) - before < 64 << 20
    for name in nasty:
        found = _in_main(service, name, "sh", "-c", "ps | grep -c 'sleep 1000'")
        assert int(found) < 60, f"{name} leaves processes: {found}"
        assert not _is_ready(service, name)
    service.rm(*nasty, "beside")


def _memory(service: Home) -> int:
    """Return the resident bytes of the service and its children."""
    assert service.process is not None
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            pages = int((folder / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == service.process.pid or folder.name == str(service.process.pid):
            total += pages * 4096
    return total


def test_a_part_of_a_volume_is_never_what_a_link_leads_to(service: Home) -> None:
    pod = """
apiVersion: v1
kind: Pod
metadata: {name: leads}
spec:
  restartPolicy: Never
  initContainers:
  - {name: trick, image: IMAGE, command: [ln, -s, /etc, /v/out], volumeMounts: [{name: v, mountPath: /v}]}
  containers:
  - name: main
    image: IMAGE
    command: [cat, /x/passwd]
    volumeMounts: [{name: v, mountPath: /x, subPath: out}]
  volumes: [{name: v, emptyDir: {}}]
"""
    assert _run(service, pod).code == 0
    service.until_state("leads", "failed", timeout_s=60)
    assert 'subPath "out" cannot be used: it is a link' in _pod(service, "leads")["message"]
    service.rm("leads")
