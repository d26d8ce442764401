"""Translates podman's messages into our errors, each with the next step.

Podman answers nearly every failure with exit code 125 and one line on standard error, so the line is what there is to
go by. Messages were collected from podman 4.3.1; wordings of later releases are added as they are met. Any other line
becomes `Unavailable` with the line in the message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fairlead import command, errors


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    kind: type[errors.FairleadError]
    reason: str
    hint: str | None = None
    exit_code: int | None = None


def _rule(
    pattern: str,
    kind: type[errors.FairleadError],
    reason: str,
    hint: str | None = None,
    *,
    exit_code: int | None = None,
) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), kind, reason, hint, exit_code)


EXISTS: Final = "ContainerExists"
NOT_RUNNING: Final = "ContainerNotRunning"
_IMAGE_HINT: Final = "build or import it (fairlead image), or pull it"
# The first match wins: the narrow ones stand before the wide ones.
_RULES: Final = (
    _rule(r"no space left on device|disk quota exceeded", errors.Unavailable, "DiskFull", "free some space"),
    _rule(r"image is in use by|image used by", errors.Conflict, "ImageInUse", "remove the containers made from it"),
    _rule(r"name .* is (already )?in use|that name is already in use", errors.Conflict, EXISTS),
    _rule(r"no (such )?container|no container with name", errors.NotFound, "ContainerNotFound"),
    _rule(r"has dependent containers", errors.Conflict, "ContainerInUse", "remove those that join its network first"),
    _rule(
        r"unresolvable CDI|CDI device",
        errors.Invalid,
        "CDIUnresolvable",
        "is the CDI spec in /etc/cdi or /var/run/cdi?",
    ),
    _rule(
        r"pinging container registry localhost:",
        errors.NotFound,
        "ImageNotFound",
        "localhost/… are images made on this machine, and this one is not here: `fairlead images` lists them",
    ),
    _rule(
        r"connection refused|no such host|i/o timeout|tls:|x509:|network is unreachable|no route to host"
        r"|server misbehaving|context deadline exceeded|503 Service|502 Bad Gateway|toomanyrequests",
        errors.Unavailable,
        "RegistryUnreachable",
        "is the registry reachable from this machine? fairlead image import needs none",
    ),
    _rule(
        r"unauthorized|requested access .* denied|invalid username/password",
        errors.NotFound,
        "ImageNotFound",
        "is its name right? Its registry may want credentials: `fairlead tenancy login` for a tenancy, or podman login",
    ),
    _rule(
        r"image not known|no such image|unable to find a name|manifest unknown|name unknown|repository .* not found"
        r"|did not resolve to an alias|404 \(?Not Found",
        errors.NotFound,
        "ImageNotFound",
        _IMAGE_HINT,
    ),
    _rule(
        r"statfs .*no such file or directory",
        errors.Invalid,
        "MountSourceMissing",
        "a folder of the host that is to be mounted is not there: make it first, or use a named volume",
    ),
    _rule(r"setting rlimit|hybrid mode", errors.Unavailable, "RuntimeRefused", "see the notes of fairlead doctor"),
    _rule(
        r"command that was not found|executable file not found|exec.*no such file or directory",
        errors.Invalid,
        "StartFailed",
        "is the command in the image?",
        exit_code=127,
    ),
    _rule(
        r"exec.*permission denied|exec format error",
        errors.Invalid,
        "StartFailed",
        "is the command executable, and built for this machine?",
        exit_code=126,
    ),
    _rule(
        r"unable to find (user|group)|workdir .* does not exist|unable to set memory limit|minimum memory limit",
        errors.Invalid,
        "StartFailed",
        exit_code=128,
    ),
    _rule(
        r"netavark|aardvark|\bcni\b|iptables|nftables|network namespace|setup network|configure network",
        errors.Unavailable,
        "NetworkUnusable",
        "set engine.network to none, or repair podman's default network",
    ),
    _rule(
        r"address already in use|port is already allocated",
        errors.Unavailable,
        "PortTaken",
        "another port of the host: -p OTHER:CONTAINER",
    ),
    _rule(
        r"can only create exec sessions on running|container state improper|is not running",
        errors.Conflict,
        NOT_RUNNING,
    ),
    _rule(
        r"invalid argument|invalid reference|statfs|^stat |no such file or directory|parsing",
        errors.Invalid,
        "ContainerInvalid",
    ),
)
_GENERAL: Final = _Rule(re.compile(""), errors.Unavailable, "EngineFailed", "podman's message says what it met")


def translate(subject: str, act: str, result: command.Result) -> errors.FairleadError:
    """Return the error for a podman run that failed.

    Args:    subject: what it was about, `container "web"`.   act: what podman was asked to do, `create`.
    """
    line = result.last_line.removeprefix("Error: ") or f"exit code {result.code}"
    rule = next((rule for rule in _RULES if rule.pattern.search(line)), _GENERAL)
    context = {} if rule.exit_code is None else {"exit_code": rule.exit_code}
    return rule.kind(f"cannot {act} {subject}: {line}", reason=rule.reason, hint=rule.hint, **context)


def warnings(result: command.Result) -> list[str]:
    """Return what podman said of a request that it carried out, without its log lines on the machine."""
    lines = [line.strip() for line in result.stderr.decode(errors="replace").splitlines()]
    return [line for line in lines if line and not line.startswith("time=")]
