"""Lists words of other programs, each with what to type here: verbs and options of docker, podman and kubectl.

One table for verbs and one for options, so that a user who types by habit is answered with the line that works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

_LIST: Final = "fairlead ps"
_APPLY: Final = "fairlead run -f FILE"
_DESCRIBE: Final = "fairlead explain NAME, or fairlead trace NAME"
_GPUS: Final = "fairlead gpus"
_STATUS: Final = "fairlead status"
_ENGINE: Final = "the engine's own command does that, podman {verb}: Fairlead adds GPUs, and keeps no {verb} of its own"
_QUEUE: Final = "fairlead ps shows who waits, fairlead explain NAME says for what"

VERBS: Final[Mapping[str, str]] = {
    "annotate": "labels are given at the start: fairlead run --label KEY=VALUE",
    "api-resources": "the service has an OpenAPI document at /schema",
    "apply": _APPLY,
    "auth": "the service is reached by its socket; fairlead status names it",
    "build": "fairlead image build CONTEXT NAME",
    "cancel": "fairlead rm NAME",
    "cluster-info": _STATUS,
    "commit": _ENGINE.format(verb="commit"),
    "config": "fairlead settings",
    "container": "fairlead ps, run, logs, exec, stop and rm stand at the root",
    "cordon": "kubectl cordon NODE on a cluster; one machine: fairlead down",
    "create": "fairlead run -d IMAGE, or fairlead run -f FILE",
    "delete": "fairlead rm NAME",
    "describe": _DESCRIBE,
    "df": "fairlead image ls shows the sizes of images",
    "diff": "fairlead cdi diff compares CDI specs; containers are not compared",
    "drain": "kubectl drain NODE on a cluster; one machine: fairlead down",
    "edit": "remove and start it anew: fairlead rm NAME; fairlead run …",
    "expose": "fairlead run -f FILE with ports[].hostPort",
    "export": _ENGINE.format(verb="export"),
    "get": "fairlead ps, fairlead gpus, fairlead nodes, fairlead events",
    "gpu": _GPUS,
    "help": "fairlead --help, or fairlead VERB --help",
    "history": _ENGINE.format(verb="history"),
    "import": "fairlead image import SOURCE NAME",
    "info": _STATUS,
    "label": "labels are given at the start: fairlead run --label KEY=VALUE",
    "list": _LIST,
    "login": "registries are logged in to with the engine's own command: podman login REGISTRY",
    "logout": "registries are logged out of with the engine's own command: podman logout REGISTRY",
    "ls": _LIST,
    "network": _ENGINE.format(verb="network"),
    "nvidia-smi": "fairlead gpus, or fairlead run -g 1 IMAGE -- nvidia-smi",
    "patch": "remove and start it anew: fairlead rm NAME; fairlead run …",
    "pause": "a paused container would keep its GPUs idle: fairlead stop NAME, later fairlead start NAME",
    "pod": "fairlead run -f FILE starts one, fairlead ps lists them",
    "pods": _LIST,
    "push": _ENGINE.format(verb="push"),
    "rename": "a name is for good: fairlead run --name NAME starts another",
    "rollout": "fairlead rm NAME, then fairlead run … again",
    "scale": "start more of them: fairlead run -d … for each",
    "search": _ENGINE.format(verb="search"),
    "serve": "fairlead up",
    "smi": _GPUS,
    "squeue": _QUEUE,
    "srun": "fairlead run -g N IMAGE -- COMMAND",
    "submit": "fairlead run -d …",
    "sbatch": "fairlead run -d …",
    "scancel": "fairlead rm NAME",
    "sinfo": "fairlead nodes",
    "system": "fairlead status, fairlead doctor",
    "unpause": "nothing is paused here: fairlead start NAME starts what has ended once more",
    "update": "remove and start it anew; GPUs: fairlead attach, fairlead detach",
    "version": "fairlead --version",
    "volumes": "fairlead volume ls",
}
"""What to type instead, by a verb that is not here."""

_NOT_GIVEN: Final = "containers get no more of the host than their GPUs"
_MANIFEST: Final = "write a manifest and start it with fairlead run -f FILE"

_RUN: Final[Mapping[str, str]] = {
    "--cap-add": _NOT_GIVEN,
    "--cap-drop": f"{_MANIFEST}: securityContext.capabilities.drop",
    "--cgroupns": "each container has a cgroup namespace of its own",
    "--cidfile": "fairlead run -d prints the name",
    "--cpu-shares": "--cpus N",
    "--cpuset-cpus": "--cpus N",
    "--device": "-g N asks for GPUs by number; which ones, the scheduler says",
    "--device-cgroup-rule": _NOT_GIVEN,
    "--dns": "containers use the engine's resolver",
    "--health-cmd": "probes are not carried out on one machine; on a cluster the kubelet does",
    "--init": "the image's first program is process 1; put tini in the image where it is needed",
    "--init-container": f"{_MANIFEST}: initContainers",
    "--ip": "the engine gives addresses; fairlead ps -o json shows them",
    "--limits": "--cpus, --memory, --gpus",
    "--link": "containers of one pod share their network: fairlead run -f FILE",
    "--log-driver": "fairlead logs NAME reads the output",
    "--mac-address": "the engine gives addresses",
    "--memory-swap": "--memory N",
    "--nodelist": f"{_MANIFEST}: nodeSelector",
    "--pid": _NOT_GIVEN,
    "--privileged": _NOT_GIVEN,
    "--publish-all": "name each: -p 8080:80",
    "--pod": f"{_MANIFEST}: several containers in one pod",
    "--read-only": f"{_MANIFEST}: securityContext.readOnlyRootFilesystem",
    "--runtime": "the service chooses the engine's runtime: fairlead runtime configure",
    "--security-opt": _NOT_GIVEN,
    "--sysctl": _NOT_GIVEN,
    "--userns": "the service chooses: fairlead settings",
    "--volumes-from": "name each: -v /HOST:/CONTAINER",
    "-P": "name each: -p 8080:80",
}

_EXEC: Final[Mapping[str, str]] = {
    "--detach": "fairlead exec NAME -- sh -c 'COMMAND &'",
    "--privileged": _NOT_GIVEN,
    "-d": "fairlead exec NAME -- sh -c 'COMMAND &'",
}
_LOGS: Final[Mapping[str, str]] = {
    "--details": "fairlead inspect NAME",
    "--previous": "fairlead logs -f shows every run that is still known",
    "-p": "fairlead logs -f shows every run that is still known",
}
_PS: Final[Mapping[str, str]] = {
    "--last": "fairlead ps -a",
    "--latest": "fairlead ps -a",
    "--size": "fairlead image ls",
}

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"exec": _EXEC, "logs": _LOGS, "ps": _PS, "run": _RUN}
"""What to type instead, by verb and an option that the verb does not have."""


def word_for(error: click.UsageError) -> str:
    """Return what to type instead of the verb or option that the command line does not have; empty: not known."""
    if isinstance(error, click.NoSuchOption):
        verb = error.ctx.info_name if error.ctx else ""
        return OPTIONS.get(verb or "", {}).get(error.option_name, "")
    if isinstance(error, click.NoSuchCommand) and error.ctx is not None and error.ctx.parent is None:
        return VERBS.get(error.command_name, "")
    return ""
