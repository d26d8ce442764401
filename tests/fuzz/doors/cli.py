"""The command line: every word that a user writes, against a live service, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import click
from click import shell_completion

from fairlead import errors
from fairlead.cli import main
from tests.fuzz import hostile
from tests.fuzz.doors import claims
from tests.fuzz.doors.text import SPEC
from tests.fuzz.harness import Door, Feed
from tests.unit.cli.liveservice import Service, serving

_BUG: Final = 70
_LONGEST_WORD: Final = 100_000
"""What a kernel takes as one argument is 128 KiB."""
_PASSED: Final = frozenset({0, 1, 127})
"""Done; what was looked at is wrong; the container's command is not found."""
_REFUSED: Final = frozenset({row.exit for row in errors.TABLE.values()}) | {1, 2, 125}
_WORDS: Final = 6000
_SERVICE: Final = (
    ["run", "-d", "-g", "1", "--name", "box", "-n", "default", "-e", "A=b", "-l", "a=b", "demo", "--", "echo", "x"],
    ["run", "-d", "-v", "/srv:/v:ro", "--cpus", "1", "--memory", "1Gi", "-w", "/srv", "-u", "1:1", "demo"],
    ["run", "-d", "--entrypoint", "echo", "--restart", "never", "-g", "nvidia.com/gpu=1", "demo"],
    ["run", "-d", "-f", "/FOLDER/pod.yaml"],
    ["apply", "-f", "/FOLDER/pod.yaml", "-n", "default", "-o", "name"],
    ["apply", "--dry-run", "-R", "-f", "/FOLDER/pod.yaml"],
    ["diff", "-f", "/FOLDER/pod.yaml"],
    ["compose", "-f", "/FOLDER/pod.yaml", "-p", "lab", "--profile", "x", "config", "--services"],
    ["compose", "-p", "none", "ps", "-a", "-o", "json", "web"],
    ["compose", "down", "-p", "none", "-t", "1"],
    ["get", "pods,deploy", "-n", "default", "-l", "app=x", "-o", "wide"],
    ["get", "cm/none", "sts/none"],
    ["open", "box", "8888", "-n", "default", "--path", "/lab?token=x"],
    ["delete", "--no-wait", "--ignore-not-found", "configmap", "none"],
    ["delete", "--no-wait", "-f", "/FOLDER/pod.yaml", "--timeout", "1"],
    ["rollout", "status", "deployment/none", "--timeout", "1"],
    ["rollout", "restart", "deployment", "none"],
    ["scale", "deployment/none", "--replicas", "2"],
    ["ps", "-a", "-l", "app=x", "-n", "default", "-o", "wide"],
    ["ps", "-o", "yaml"],
    ["logs", "--tail", "1", "-c", "demo", "-n", "default", "held"],
    ["exec", "-c", "demo", "-e", "A=b", "-u", "1:1", "-w", "/srv", "--env-file", "/FOLDER/none", "held", "--", "ls"],
    ["shell", "--image", "demo", "--template", "none", "-n", "default", "held"],
    ["ssh-config", "--alias", "lab", "--identity", "/FOLDER/id", "-n", "default", "held"],
    ["kill", "-s", "0", "held"],
    ["cp", "held:/etc/hostname", "/FOLDER/out"],
    ["stats", "--no-stream", "--format", "{{.Name}}", "none"],
    ["top", "held"],
    ["port", "held", "80/tcp"],
    ["inspect", "--format", "{{.Name}}", "held"],
    ["restart", "none"],
    ["start", "none"],
    ["prune", "-f"],
    ["volume", "create", "cache"],
    ["volume", "rm", "none"],
    ["secrets", "create", "token", "/FOLDER/pod.yaml", "--key", "a", "-n", "default"],
    [
        *("secrets", "create", "--replace", "token", "--from-file", "a=/FOLDER/config.json", "-n", "default"),
        *("--from-file", "/FOLDER/config.json", "--from-env-file", "/FOLDER/env"),
    ],
    ["secrets", "list", "-n", "default", "-o", "wide"],
    ["secrets", "show", "token", "-n", "default", "-o", "json"],
    ["secrets", "delete", "-f", "none"],
    ["run", "-d", "--secret", "token/value:/run/x", "--secret", "token,type=mount,target=/y,mode=0400", "demo"],
    ["run", "--dry-run", "-g", "1", "--secret", "token", "-v", "cache:/v", "--name", "never", "demo", "--", "true"],
    ["run", "--dry-run", "-f", "/FOLDER/pod.yaml"],
    ["run", "--dry-run", "-g", "2", "--where", "model=H100,memory>=40Gi,numa=same", "--device-class", "gpu", "demo"],
    ["run", "-d", "--claim", "gpus=two", "--claim", "mine", "demo"],
    ["run", "-d", "--secret", "token/a=TOKEN", "--secret", "token,type=env,target=B", "demo"],
    ["queue", "set", "team", "--deserved", "nvidia.com/gpu=1", "--namespace", "default"],
    ["queue", "set", "team", "--idle", "stop", "--idle-after", "30m", "--idle-below", "5", "--idle-exempt", "red"],
    ["queue", "rm", "none"],
    ["reserve", "-g", "1", "--from", "tomorrow 9:00", "--for", "3h", "--repeat", "weekdays", "--name", "night"],
    ["reserve", "list"],
    ["reserve", "delete", "none"],
    ["tenancy", "create", "red", "--gpus", "1", "--egress", "192.168.7.0/24"],
    [
        *("tenancy", "create", "blue", "--nfs", "nas.example:/exports/blue", "--nfs-option", "vers=4.2"),
        *("--quota", "pods=3", "--image", "team/", "--display-name", "Blue", "--network", "none"),
    ],
    ["tenancy", "login", "red", "registry.example:5000/team", "-u", "robot", "--password-stdin"],
    ["tenancy", "logout", "red", "registry.example:5000/team"],
    ["user", "create", "ann", "--service"],
    ["user", "grant", "ann", "viewer", "-T", "red"],
    ["key", "create", "--user", "ann", "--scope", "read", "--expires", "1d", "--note", "x"],
    ["key", "revoke", "0123456789ab"],
    ["webhook", "create", "https://hooks.example/x", "-T", "red", "--event", "container.*"],
    ["webhook", "test", "whk_0123456789ab"],
    ["budget", "set", "red", "5.50", "--action", "stop", "--grace", "60", "--notify-percent", "50,100"],
    ["budget", "show", "red"],
    ["budget", "remove", "red"],
    ["notify", "add", "ann@example.com", "-T", "red", "--event", "container.*"],
    ["notify", "add", "https://hooks.example/x", "--format", "slack", "--machine"],
    ["notify", "list", "--everybody", "-o", "json"],
    ["notify", "show", "whk_0123456789ab"],
    ["notify", "test", "whk_0123456789ab"],
    ["notify", "confirm", "whk_0123456789ab", "01234567"],
    ["notify", "remove", "whk_0123456789ab"],
    ["webhook", "show", "whk_0123456789ab"],
    ["webhook", "delete", "whk_0123456789ab"],
    ["lease", "quarantine", "0", "--why", "row remap failed"],
    ["lease", "release", "0", "--why", "replaced"],
    ["lease", "history", "0"],
    ["leases", "-o", "json"],
    ["sharing", "-o", "json"],
    ["topology", "-o", "json"],
    ["nodes", "-o", "name"],
    ["capacity", "-o", "json"],
    ["usage", "--since", "1d", "--until", "1h", "--by", "day,model", "-o", "json"],
    ["usage", "check", "--since", "1d"],
    ["audit", "--since", "1d", "--until", "1h", "--user", "ann", "-n", "3", "-o", "json"],
    ["status", "-o", "json"],
    ["stop", "none"],
    ["rm", "none"],
    ["wait", "--timeout", "0.01", "--state", "started", "held"],
    ["trace", "-n", "default", "-o", "text", "held"],
    ["explain", "-o", "json", "held"],
    ["events", "pod/held", "-o", "wide"],
    ["gpus", "-o", "name"],
    ["quota", "apply", "-f", "/FOLDER/quota.yaml"],
    ["quota", "rm", "-n", "default", "x"],
    ["image", "rm", "x"],
    ["simulate", "fault", "xid", "79", "--gpu", "0"],
    ["vfio", "list", "9f:00.0", "-o", "wide"],
    ["vfio", "check", "9999:99:00.0"],
    ["vfio", "plan", "pcie-48b02d000000000f"],
    ["vfio", "bind", "--dry-run", "9999:99:00.0"],
    ["vfio", "release", "--dry-run", "9999:99:00.0", "-o", "json"],
    ["vfio", "reset", "--dry-run", "9999:99:00.0"],
    ["vfio", "guest-report", "--port", "-", "--nonce", "n"],
    ["vfio", "image-digest", "/nowhere"],
    ["fabric", "list", "--address", "127.0.0.1:1", "--library", "/FOLDER/none", "-o", "wide"],
    ["fabric", "status", "--agent", "3:6667"],
    ["fabric", "activate", "--address", "/FOLDER/fm.sock", "--library", "/FOLDER/none", "7"],
    ["fabric", "deactivate", "--address", "/FOLDER/fm.sock", "--library", "/FOLDER/none", "7"],
    ["update", "-n", "default", "--cpus", "1.5", "-m", "512m", "-c", "demo", "held"],
    ["rename", "-n", "default", "held", "held-2"],
    ["debug", "-n", "default", "--image", "demo", "--target", "demo", "-c", "look", "-e", "A=b", "held", "--", "ps"],
    ["attach", "-n", "default", "-c", "demo", "--resource", "nvidia.com/gpu", "none", "1"],
    ["detach", "-n", "default", "--force", "none", "1"],
    ["doctor", "-o", "json", "--image", "demo"],
)
UNFED: Final = {
    "import": "asks another engine; tests/unit/cli/container/test_inspected.py feeds it what one may say",
    "up": "runs until it is stopped",
    "agent": "runs until it is stopped",
    "api": "runs until it is stopped",
    "controller": "runs until it is stopped",
    "kubelet": "runs until it is stopped",
    "port-forward": "runs until it is stopped",
    "down": "ends the service that is asked",
    "service": "changes the machine's units",
    "state": "changes the state folder",
    "withdraw": "changes a cluster",
    "manifests": "prints a chart's values",
    "mig": "changes GPUs; its files are a door of their own",
    "pull": "as image pull, a route's body",
    "tag": "as image tag, a route's body",
    "save": "as image save",
    "load": "as image load",
    "images": "as image ls",
    "rmi": "as image rm",
    "login": "changes the caller's own file, and asks a network",
    "context": "changes the caller's own file",
    "whoami": "takes no string",
    "secret": "as secrets",
    "notebook": "as shell, whose template serves a page",
    "ssh-key": "reads a file; tests/unit/serve/ssh feeds the route what one may hold",
}
"""Verbs that no line here feeds, and why."""
_LAYERS: Final = (
    ["dra", "check", "-f", "/FOLDER/claims.yaml", "--feature-gate", "DRAListTypeAttributes=true", "-o", "json"],
    [*("dra", "eval", "-f", "/FOLDER/claims.yaml", "--device", "gpu-0", "--release", "1.36"), "device.driver == 'x'"],
    ["dra", "slices", "-f", "/FOLDER/claims.yaml", "--devices", "--feature-gate", "DRAPartitionableDevices=false"],
    ["dra", "claims", "-f", "/FOLDER/claims.yaml", "-n", "team", "--all"],
    ["dra", "free", "-f", "/FOLDER/claims.yaml", "--partition-type", "gpu.example.com/type", "-o", "yaml"],
    ["dra", "explain", "-f", "/FOLDER/claims.yaml", "-n", "team", "-o", "json", "claim/train"],
    ["cdi", "lint", "--spec-dir", "/FOLDER/cdi", "/FOLDER/cdi/a.json"],
    ["cdi", "validate", "--strict", "/FOLDER/cdi/a.json"],
    ["cdi", "list", "--spec-dir", "/FOLDER/cdi", "-o", "json"],
    ["cdi", "explain", "--spec-dir", "/FOLDER/cdi", "vendor.example/gpu=gpu0"],
    ["cdi", "inject", "--spec-dir", "/FOLDER/cdi", "/FOLDER/config.json", "vendor.example/gpu=gpu0"],
    ["cdi", "diff", "/FOLDER/cdi/a.json", "/FOLDER/cdi/a.json"],
    [
        *("runtime", "configure", "--engine", "containerd", "--config", "/FOLDER/engine/config.toml", "--dry-run"),
        *("--runtime-name", "x", "--drop-in", "/FOLDER/engine/x.toml", "--kata-folder", "/opt/kata"),
        *("--engine-version", "1.7.0", "--folder", "/FOLDER/lib"),
    ],
    [
        *("runtime", "configure", "--engine", "podman", "--config", "/FOLDER/engine/containers.conf", "--dry-run"),
        *("--gvisor", "--gvisor-program", "/FOLDER/runsc", "--gvisor-flag", "debug", "--gvisor-dev", "/FOLDER/dev"),
    ],
    ["runtime", "check", "--engine", "containerd", "--config", "/FOLDER/engine/config.toml"],
    ["isolate", "audit", "--pid", "1", "--device", "/dev/null", "--spec-dir", "/FOLDER/cdi", "-o", "json"],
    ["isolate", "audit", "--cgroup", "/FOLDER/cdi", "held"],
    ["scheduler", "--replay", "/FOLDER/snapshot.json", "-o", "json"],
    ["scheduler", "--plan-moves", "--replay", "/FOLDER/snapshot.json", "-o", "json"],
    ["settings", "-o", "json"],
    ["completion", "bash"],
    ["--config", "/FOLDER/config.toml", "--url", "http+unix:///nonexistent", "status"],
    ["--kubeconfig", "/FOLDER/kubeconfig", "--context", "x", "ps"],
)


_TABBED: Final = (
    ["logs", "-n", "default", "he"],
    ["run", "--secret", "x", "de"],
    ["secrets", "show", "to"],
    ["volume", "rm", "ca"],
    ["tenancy", "show", "re"],
    ["attach", "held", ""],
    ["--context", "x", "ps", "--"],
    ["up", "--simulate", "t4"],
)
"""Lines whose last word a shell asks to be completed."""
_WORD: Final = re.compile(r"[-\w.:/@+=,%~]*")
"""What a shell takes as one word, whatever it holds."""


class Refused(Exception):
    """An exit code of the table, with words."""


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Feed]:
    """Serve a machine with one container, and feed lines to the command line."""
    for name in ("cdi", "engine", "service"):
        (folder / name).mkdir()
    (folder / "cdi" / "a.json").write_text(json.dumps(SPEC))
    (folder / "config.json").write_text("{}")
    (folder / "claims.yaml").write_text(json.dumps(claims.SLICE) + "\n---\n" + json.dumps(claims.CLAIM))
    with serving(folder / "service") as service:
        service.env["FAIRLEAD_STATE_FOLDER"] = str(folder / "state")
        service.env["HOME"] = str(folder)
        held = ("run", "-d", "-g", "1", "--name", "held", "demo", "--", "sleep", "1000")
        assert service.fairlead(*held).exit_code == 0
        assert service.fairlead("wait", "--state", "started", "held").exit_code == 0

        async def feed(data: bytes) -> None:
            words = [word.replace("/FOLDER", str(folder)) for word in argv(data)]
            try:
                await asyncio.to_thread(_run, service, words)  # some verbs have an event loop of their own
            finally:
                if words[:1] == ["run"]:  # no other line makes containers
                    await asyncio.to_thread(_tidy, service)

        yield feed


@contextlib.asynccontextmanager
async def _completed(folder: Path) -> AsyncIterator[Feed]:
    with serving(folder) as service:
        assert service.fairlead("run", "-d", "--name", "held", "demo").exit_code == 0
        assert service.fairlead("secrets", "create", "token", "-", stdin="x").exit_code == 0

        async def feed(data: bytes) -> None:
            await asyncio.to_thread(_complete, service, argv(data))

        yield feed


def _complete(service: Service, words: list[str]) -> None:
    shell = shell_completion.BashComplete(main.root, {"obj": service.env}, "fairlead", "_FAIRLEAD_COMPLETE")
    try:
        offered = shell.get_completions(words[:-1], words[-1] if words else "")
    except click.ClickException as error:
        raise Refused(error.message) from error
    for one in offered:
        if one.type == "plain" and not _WORD.fullmatch(one.value):
            raise AssertionError(f"a shell would not take it as one word: {one.value!r:.200}")


def argv(data: bytes) -> list[str]:
    """Return what a kernel can hand to a program. Raises: Refused."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused("not words") from error
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise Refused("not words")
    for word in found:
        try:
            word.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise Refused("no program can be told") from error
        if "\0" in word or len(word) > _LONGEST_WORD:
            raise Refused("no program can be told")
    return found


def _run(service: Service, words: list[str]) -> None:
    answer = service.fairlead(*words)
    is_theirs = bool(words) and words[0] in {"exec", "logs", "run"}  # what a container writes is passed on as it is
    if answer.exit_code == _BUG or "Traceback" in answer.output or "this is a bug" in answer.output:
        raise AssertionError(answer.output[-600:])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    if len(answer.stderr) > _WORDS:
        raise AssertionError(f"{len(answer.stderr)} characters of errors: {answer.stderr[:100]!r}")
    if not is_theirs:
        check_output(answer.output)
    if answer.exit_code in _REFUSED and answer.stderr:
        raise Refused(answer.stderr[:300])
    if answer.exit_code not in _PASSED:
        raise AssertionError(f"exit code {answer.exit_code}: {answer.output[:300]!r}")


def check_output(text: str) -> None:
    """Refuse what would be an order to a terminal."""
    if set(text) & _CONTROLS:
        raise AssertionError(f"a control character reached the terminal: {text[:200]!r}")


_CONTROLS: Final = frozenset(map(chr, (*range(8), *range(11, 27), *range(28, 32), *range(127, 160)))) | {
    "\u202e",
    "\u2066",
}


def _tidy(service: Service) -> None:
    for name in service.fairlead("ps", "-a", "-o", "name").stdout.split():
        if not name.endswith("held"):
            namespace, _, rest = name.rpartition("/")
            service.fairlead("rm", *(("-n", namespace) if namespace else ()), "--", rest or name)


DOORS: Final = (
    Door(
        name="command line of verbs of the service",
        programs=("podman",),  # `doctor --image` asks it
        opened=opened,
        specimens=tuple((" ".join(words[:2]), words) for words in _SERVICE),
        values=hostile.TEXTS,
        documents=False,
        refusals=(Refused,),
        refuses_specimens=True,
        sample=140,
    ),
    Door(
        name="command line of single layers",
        opened=opened,
        specimens=tuple((" ".join(words[:2]), words) for words in _LAYERS),
        values=hostile.TEXTS,
        documents=False,
        refusals=(Refused,),
        refuses_specimens=True,
        programs=("containerd", "podman", "systemctl"),  # asked for release, containers, and the unit's command line
        sample=100,
    ),
    Door(
        name="command line that a shell completes",
        opened=_completed,
        specimens=tuple((" ".join(words[:2]), words) for words in _TABBED),
        values=hostile.TEXTS,
        documents=False,
        refusals=(Refused,),
        sample=60,
    ),
)


def fed() -> frozenset[str]:
    """Return the verbs that the lines here feed."""
    return frozenset(line[0] for line in (*_SERVICE, *_LAYERS))
