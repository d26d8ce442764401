"""Podman's argument lists: nothing of the host leaks in, nothing of the caller is taken for an option."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib import parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.engine import port
from fairlead.engine.podman import args, host
from fairlead.model.process import AS_THE_CONTAINER
from fairlead.wire.kubernetes import names

HOST = host.Host(
    info=port.EngineInfo(name="podman", version="4.3.1", runtime="runc", cdi_ceiling="0.5.0", cgroup_version=1),
    conmon="/usr/bin/conmon",
    globals=("--runtime", "runc"),
    ulimits=("nofile=1:1",),
    network="none",
    may_fall_back=False,
    pid_folder=Path("/run"),
    bundle_folder=Path("/var"),
)


def arguments(*, log_max_mib: int = 10, **more: Any) -> list[str]:
    spec = port.ContainerSpec(**{"name": "web", "image": "localhost/web:1", **more})
    return args.create(spec, HOST, network=HOST.network, log_max_mib=log_max_mib)


def test_runtime_and_limits_of_this_machine_are_named() -> None:
    found = arguments()
    assert found[:3] == ["--runtime", "runc", "create"]
    assert "--ulimit=nofile=1:1" in found
    assert found[-1] == "localhost/web:1"


def test_images_are_never_pulled_and_proxies_never_copied() -> None:
    assert {"--pull=never", "--http-proxy=false"} <= set(arguments())


def test_a_log_has_a_size_that_the_operator_chose() -> None:
    assert "--log-opt=max-size=10mb" in arguments()
    assert not [flag for flag in arguments(log_max_mib=0) if flag.startswith("--log-opt")]


def test_command_is_the_entrypoint_and_args_follow_the_image() -> None:
    found = arguments(command=("/bin/sh", "-c"), args=("echo 'a b'", "--name=evil"))
    assert '--entrypoint=["/bin/sh", "-c"]' in found
    assert found[-4:] == ["--", "localhost/web:1", "echo 'a b'", "--name=evil"]


def test_an_annotation_has_no_quotes_and_no_commas_which_podman_would_read_as_csv() -> None:
    devices = '{"nvidia.com/gpu": ["GPU-0", "GPU-1"]}'
    found = arguments(labels={names.HOME: devices})
    assert f"--label={names.HOME}={devices}" in found
    annotation = next(one for one in found if one.startswith("--annotation="))
    assert not set(annotation) & set('",\n')
    assert parse.unquote(annotation) == f"--annotation={names.HOME}={devices}"


def test_a_bind_that_two_plugins_ask_for_is_given_once() -> None:
    pipe, log = port.Bind(host_path="/p", container_path="/mps/pipe"), port.Bind(host_path="/l", container_path="/l")
    found = arguments(binds=(pipe, log, pipe))
    assert [one for one in found if one.startswith("--volume=")] == ["--volume=/p:/mps/pipe:rw", "--volume=/l:/l:rw"]


def test_memory_has_no_swap_beside_it() -> None:
    assert {"--memory=1024b", "--memory-swap=1024b", "--cpus=0.5"} <= set(
        arguments(memory_limit_bytes=1024, cpu_limit=0.5)
    )


def test_rights_are_taken_away_only_where_that_is_asked_for() -> None:
    wanted = {"--read-only", "--read-only-tmpfs=false", "--security-opt=no-new-privileges", "--cap-drop=ALL"}
    assert not wanted & set(arguments())
    assert wanted <= set(
        arguments(is_root_read_only=True, may_gain_privileges=False, dropped_capabilities=("ALL",)),
    )


def test_devices_by_cdi_name_and_by_node() -> None:
    found = arguments(cdi_devices=("nvidia.com/gpu=0",), device_nodes=(("/r/dev/nvidia0", "/dev/nvidia0", "rw"),))
    assert "--device=nvidia.com/gpu=0" in found
    assert "--device=/r/dev/nvidia0:/dev/nvidia0:rw" in found


def test_who_joins_a_network_shares_its_host_name() -> None:
    found = arguments(network_of="first", hostname="other")
    assert "--network=container:first" in found
    assert not [flag for flag in found if flag.startswith("--hostname")]


@pytest.mark.parametrize(
    ("bind", "flag"),
    [
        (port.Bind(host_path="/a,b", container_path="/c"), "--volume=/a,b:/c:rw"),
        (port.Bind(host_path="/a", container_path="/c", is_read_only=True), "--volume=/a:/c:ro"),
        (port.Bind(host_path="/a", container_path="/c", is_untrusted=True), "--volume=/a:/c:rw,nosuid,nodev"),
        (
            port.Bind(host_path="/a:b", container_path="/c", is_untrusted=True),
            "--mount=type=bind,src=/a:b,dst=/c,ro=false,nosuid,nodev",
        ),
        (
            port.Bind(host_path="/a:b", container_path="/c", is_read_only=True),
            "--mount=type=bind,src=/a:b,dst=/c,ro=true",
        ),
    ],
)
def test_binds_are_told_in_the_form_that_can_hold_them(bind: port.Bind, flag: str) -> None:
    assert flag in arguments(binds=(bind,))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"binds": (port.Bind(host_path="/a:b,c", container_path="/c"),)}, "BindInvalid"),
        ({"binds": (port.Bind(host_path="volume", container_path="/c"),)}, "BindInvalid"),
        ({"env": {"A=B": "c"}}, "EnvInvalid"),
        ({"env": {"": "c"}}, "EnvInvalid"),
        ({"device_nodes": (("/dev/a:b", "/dev/a", "rw"),)}, "DevicePathInvalid"),
        ({"name": "--privileged"}, "ContainerNameInvalid"),
        ({"network_of": "../x"}, "ContainerNameInvalid"),
        ({"image": "--privileged"}, "ImageNameInvalid"),
        ({"image": "docker-archive:/etc/shadow"}, "ImageNameInvalid"),
    ],
)
def test_what_podman_cannot_be_told_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        arguments(**more)
    assert caught.value.reason == reason


@given(st.dictionaries(st.text("AB*_=", min_size=1, max_size=4).filter(lambda name: "=" not in name), st.text("a=* ")))
def test_every_variable_carries_its_value_so_the_hosts_is_never_looked_up(env: dict[str, str]) -> None:
    flags = [flag.removeprefix("--env=") for flag in arguments(env=env) if flag.startswith("--env=")]
    assert dict(flag.split("=", 1) for flag in flags) == env


@pytest.mark.parametrize(("asked", "told"), [(0.0, 0), (0.2, 1), (30.0, 30), (-1.0, 0)])
def test_grace_is_never_shorter_than_asked(asked: float, told: int) -> None:
    assert args.grace(asked) == told


@given(st.lists(st.text("-a=", min_size=1, max_size=6), min_size=1, max_size=3))
def test_no_word_of_an_exec_is_taken_for_an_option(words: list[str]) -> None:
    found = args.execute("web", words, tty=False, stdin=False, options=AS_THE_CONTAINER)
    assert found == ["--log-level=fatal", "exec", "--", "web", *words]


def test_marks_in_the_runtime_spec_are_words_that_no_podman_reads_otherwise() -> None:
    found = [
        flag for flag in arguments(labels={names.HOME: "h", names.POD_NAME: '{"a.b/c": ["x", "y"]}', "other": "z"})
    ]
    notes = [flag for flag in found if flag.startswith("--annotation=")]
    assert len(notes) == 2
    assert not [flag for flag in notes if '"' in flag or "," in flag]


def test_ports_lead_in_where_the_network_is_the_container_s_own() -> None:
    ports = (
        port.Port(host_port=8080, container_port=80),
        port.Port(host_port=53, container_port=53, protocol="udp", host_ip="::1"),
    )
    found = arguments(ports=ports)
    assert [word for word in found if word.startswith("--publish")] == [
        "--publish=8080:80/tcp",
        "--publish=[::1]:53:53/udp",
    ]


def test_shared_memory_has_the_size_that_is_asked_for() -> None:
    assert "--shm-size=1024b" in arguments(shm_bytes=1024)
    assert not [word for word in arguments() if "shm" in word]


def test_labels_filter_by_value_or_by_being_there() -> None:
    assert args.label_filters({"a": "", "b": "c"}) == ["--filter=label=a", "--filter=label=b=c"]


def test_a_container_that_joins_a_network_joins_its_users_but_in_a_sandbox_of_gvisor_has_its_own() -> None:
    joined = arguments(first_user_id=100_000, network_of="box")
    assert "--userns=container:box" in joined
    beside = arguments(first_user_id=100_000, network_of="box", runtime="gvisor")
    assert beside[:3] == ["--runtime", "gvisor", "create"]
    assert {"--network=container:box", "--uidmap=0:100000:65536", "--gidmap=0:100000:65536"} <= {*beside}
    assert not [word for word in beside if word.startswith("--userns")]
