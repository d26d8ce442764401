"""What docker and podman say of a container becomes a line of run; each field that it cannot carry is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.cli.container import inspected

IMAGE: dict[str, Any] = {"Config": {"Env": ["PATH=/bin"], "Cmd": ["serve"], "Entrypoint": None, "WorkingDir": "/app"}}
DOCKER: dict[str, Any] = {
    "Id": "0123456789ab" + "c" * 52,
    "Name": "/Trainer_1",
    "Config": {
        "Image": "vllm/vllm-openai:v0.9",
        "Env": ["PATH=/bin", "HF_TOKEN=a b"],
        "Cmd": ["--model", "x"],
        "Entrypoint": None,
        "WorkingDir": "/app",
        "Hostname": "0123456789ab",
        "Labels": {"team": "nlp"},
        "Healthcheck": {"Test": ["CMD", "test", "-e", "a b"], "Interval": 5_000_000_000, "Retries": 4},
        "StopSignal": "SIGINT",
    },
    "HostConfig": {
        "DeviceRequests": [{"Driver": "", "Count": 2, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}],
        "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8000"}], "53/udp": [{"HostIp": "", "HostPort": ""}]},
        "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3},
        "Memory": 1073741824,
        "NanoCpus": 1500000000,
        "ShmSize": 17179869184,
        "NetworkMode": "lab_default",
        "IpcMode": "private",
        "CapAdd": ["SYS_PTRACE"],
        "Privileged": False,
        "Dns": ["10.0.0.2"],
        "DnsSearch": ["lab"],
        "DnsOptions": ["ndots:1"],
        "ExtraHosts": ["db:10.0.0.7", "host.docker.internal:host-gateway"],
        "GroupAdd": ["video"],
        "Init": True,
        "PidsLimit": None,
    },
    "Mounts": [
        {"Type": "bind", "Source": "/data", "Destination": "/data", "RW": False},
        {"Type": "volume", "Name": "cache", "Source": "/volumes/cache/_data", "Destination": "/root/.cache"},
    ],
}  # fmt: skip


def test_dockers_container_is_a_line_and_the_rest_is_named() -> None:
    line = inspected.line_of(DOCKER, IMAGE)
    assert " ".join(line.argv) == (
        "fairlead run -d --name trainer-1 -g 2 -e HF_TOKEN=a b -l team=nlp --stop-signal SIGINT -v /data:/data:ro "
        "-v cache:/root/.cache -m 1073741824 --cpus 1.5 --shm-size 17179869184 --restart on-failure --init "
        "--group-add video -p 8000:8000 -p :53/udp --add-host db:10.0.0.7 --dns 10.0.0.2 --dns-option ndots:1 "
        "--dns-search lab --health-cmd test -e 'a b' --health-interval 5s --health-retries 4 "
        "vllm/vllm-openai:v0.9 -- --model x"
    )
    named = [one.partition(":")[0] for one in line.left_out]
    assert named == [
        "Mounts[1]",
        "HostConfig.RestartPolicy.MaximumRetryCount",
        "HostConfig.NetworkMode",
        "HostConfig.ExtraHosts",
        "HostConfig.CapAdd",
    ]


@pytest.mark.parametrize(
    ("host", "created", "words"),
    [
        ({"DeviceRequests": [{"Count": -1}]}, (), ["-g", "all"]),
        ({"DeviceRequests": [{"Count": 0, "DeviceIDs": ["0", "GPU-a"]}]}, (), ["-g", "2"]),
        ({"Devices": [{"PathOnHost": "/dev/nvidia0"}, {"PathOnHost": "/dev/nvidiactl"}]}, (), ["-g", "1"]),
        ({}, ("podman", "run", "--device", "nvidia.com/gpu=all", "x"), ["-g", "all"]),
        ({}, ("podman", "run", "--device", "nvidia.com/gpu=0", "--device=nvidia.com/gpu=1", "x"), ["-g", "2"]),
        ({}, (), []),
    ],
)
def test_gpus_by_each_engines_means(host: dict[str, Any], created: tuple[str, ...], words: list[str]) -> None:
    found = {"Name": "a", "Config": {"Image": "x", "CreateCommand": list(created)}, "HostConfig": host}
    assert inspected.line_of(found, {}).options[2:] == words


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(DOCKER["HostConfig"])), _JSON)
def test_a_hostile_answer_is_a_line_or_an_error_of_ours(name: str, value: Any) -> None:
    found = {**DOCKER, "HostConfig": {**DOCKER["HostConfig"], name: value}}
    try:
        line = inspected.line_of(json.loads(json.dumps(found)), IMAGE)
    except errors.ProtocolError:
        return
    assert line.argv[:2] == ("fairlead", "run")
