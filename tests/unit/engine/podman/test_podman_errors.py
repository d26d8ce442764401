"""Podman's own words (4.3.1, collected on the project's machine) become our errors."""

from __future__ import annotations

import pytest

from fairlead import command, errors
from fairlead.engine.podman import errors as podman_errors

SEEN: list[tuple[str, type[errors.FairleadError], str]] = [
    ("localhost/nope:1: image not known", errors.NotFound, "ImageNotFound"),
    (
        'creating container storage: the container name "e3" is already in use by 56f6. You have to remove that '
        "container to be able to reuse that name: that name is already in use",
        errors.Conflict,
        "ContainerExists",
    ),
    ('no container with name or ID "x" found: no such container', errors.NotFound, "ContainerNotFound"),
    ("setting up CDI devices: unresolvable CDI devices vendor.com/gpu=g0", errors.Invalid, "CDIUnresolvable"),
    (
        'runc: runc create failed: unable to start container process: exec: "/bin/nosuch": stat /bin/nosuch: no such '
        "file or directory: OCI runtime attempted to invoke a command that was not found",
        errors.Invalid,
        "StartFailed",
    ),
    (
        'runc: runc create failed: unable to start container process: exec: "/etc": permission denied: OCI permission '
        "denied",
        errors.Invalid,
        "StartFailed",
    ),
    ("unable to find user nobodyx: no matching entries in passwd file", errors.Invalid, "StartFailed"),
    ('workdir "/nodir" does not exist on container dda035', errors.Invalid, "StartFailed"),
    (
        "runc: runc create failed: unable to start container process: error during container init: error setting "
        "rlimits for ready process: error setting rlimit type 6: operation not permitted: OCI permission denied",
        errors.Unavailable,
        "RuntimeRefused",
    ),
    (
        "OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2",
        errors.Unavailable,
        "RuntimeRefused",
    ),
    ("stat /dev/nonexist: no such file or directory", errors.Invalid, "ContainerInvalid"),
    ("statfs /nonexist: no such file or directory", errors.Invalid, "MountSourceMissing"),
    (
        'initializing source docker://127.0.0.1:1/x:latest: pinging container registry 127.0.0.1:1: Get "https://'
        '127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused',
        errors.Unavailable,
        "RegistryUnreachable",
    ),
    ("writing blob: storing blob: write /var/tmp/x: no space left on device", errors.Unavailable, "DiskFull"),
    ("netavark: iptables: No such file or directory (os error 2)", errors.Unavailable, "NetworkUnusable"),
    (
        "cannot listen on the TCP port: listen tcp4 :18099: bind: address already in use",
        errors.Unavailable,
        "PortTaken",
    ),
    ("something never seen before", errors.Unavailable, "EngineFailed"),
    (
        'initializing source docker://localhost/x:latest: pinging container registry localhost: Get "https://localhost'
        '/v2/": dial tcp 127.0.0.1:443: connect: connection refused',
        errors.NotFound,
        "ImageNotFound",
    ),
]


@pytest.mark.parametrize(("line", "kind", "reason"), SEEN)
def test_each_message_is_the_error_of_who_must_act(line: str, kind: type[errors.FairleadError], reason: str) -> None:
    result = command.Result(code=125, stdout=b"", stderr=f"time=x level=warning\nError: {line}\n".encode())

    error = podman_errors.translate('container "web"', "create", result)

    assert (type(error), error.reason) == (kind, reason)
    assert error.message == f'cannot create container "web": {line}'


@pytest.mark.parametrize(
    ("line", "code"), [(SEEN[4][0], 127), (SEEN[5][0], 126), (SEEN[6][0], 128)], ids=["missing", "refused", "user"]
)
def test_start_failures_carry_the_exit_code_a_shell_would_give(line: str, code: int) -> None:
    result = command.Result(code=125, stdout=b"", stderr=line.encode())
    assert podman_errors.translate("x", "start", result).context["exit_code"] == code


def test_a_silent_failure_says_its_exit_code() -> None:
    error = podman_errors.translate("x", "start", command.Result(code=139, stdout=b"", stderr=b"\n"))
    assert "exit code 139" in error.message
