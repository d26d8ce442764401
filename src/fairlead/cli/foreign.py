"""Lists words of other programs, each with what to type here: docker, podman, kubectl, slurm, NVIDIA's tools, monitors.

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
_GPUS_NOW: Final = "fairlead gpus -w shows load, memory and power, fairlead top what containers use"
_SHELL: Final = "fairlead exec -it NAME sh, or a new container: fairlead run -it IMAGE -- sh"
_CONSOLE: Final = "with `fairlead up --listen :8443` a browser has it at https://HOST:8443/console"
_STATUS: Final = "fairlead status"
_ENGINE: Final = "the engine's own command does it, as podman {verb}: Fairlead adds GPUs, and has no {verb} of its own"
_ENGINE_CONTAINER: Final = (
    "podman {verb} does it, under the name that podman has for it: podman ps --filter label=io.kubernetes.pod.name=NAME"
)
_QUEUE: Final = "fairlead ps shows who waits, fairlead explain NAME says for what"

VERBS: Final[Mapping[str, str]] = {
    "accounts": "fairlead user list",
    "annotate": "labels are given at the start: fairlead run --label KEY=VALUE",
    "api-resources": "the service describes its routes at /v1/openapi.json",
    "api-versions": "the service describes its routes at /v1/openapi.json",
    "apply": _APPLY,
    "auth": "the service is reached by its socket; fairlead status names it",
    "auto-update": "fairlead pull IMAGE, then start it anew: fairlead rm -f NAME; fairlead run …",
    "autoscale": "start more of them: fairlead run -d --name NAME --replicas N …",
    "bash": _SHELL,
    "build": "fairlead image build CONTEXT NAME",
    "builder": "fairlead image build CONTEXT NAME, fairlead image prune",
    "buildx": "fairlead image build CONTEXT NAME",
    "cancel": "fairlead rm NAME",
    "certificate": "fairlead status shows the fingerprint of the service's key",
    "checkpoint": _ENGINE_CONTAINER.format(verb="checkpoint"),
    "cluster-info": _STATUS,
    "commit": _ENGINE_CONTAINER.format(verb="commit"),
    "compose": "a group of containers is one pod: fairlead run -f FILE",
    "config": "fairlead settings",
    "console": _CONSOLE,
    "container": "fairlead ps, run, logs, exec, stop and rm stand at the root",
    "cordon": "kubectl cordon NODE on a cluster; one machine: fairlead down",
    "create": "fairlead run -d IMAGE, or fairlead run -f FILE",
    "daemon": "fairlead up, or fairlead service install for a unit of systemd",
    "dashboard": _CONSOLE,
    "dcgmi": _GPUS_NOW,
    "debug": "fairlead explain NAME, or fairlead exec -it NAME sh",
    "delete": "fairlead rm NAME",
    "describe": _DESCRIBE,
    "devices": _GPUS,
    "df": "fairlead image ls shows the sizes of images",
    "diff": "fairlead cdi diff compares CDI specs; containers are not compared",
    "disable": "fairlead service uninstall",
    "drain": "kubectl drain NODE on a cluster; one machine: fairlead down",
    "edit": "remove and start it anew: fairlead rm NAME; fairlead run …",
    "enable": "fairlead service install",
    "export": _ENGINE_CONTAINER.format(verb="export"),
    "expose": "publish a port at the start: fairlead run -p HOST:CONTAINER",
    "generate": "fairlead cdi generate writes CDI specs",
    "get": "fairlead ps, fairlead gpus, fairlead nodes, fairlead events",
    "gpu": _GPUS,
    "gpustat": _GPUS_NOW,
    "healthcheck": "fairlead explain NAME, fairlead doctor",
    "help": "fairlead --help, or fairlead VERB --help",
    "history": _ENGINE.format(verb="history"),
    "htop": _GPUS_NOW,
    "import": "fairlead image import SOURCE NAME",
    "info": _STATUS,
    "init": "fairlead up",
    "install": "fairlead service install writes a unit; programs are in images: fairlead image build CONTEXT NAME",
    "jobs": _QUEUE,
    "kube": "fairlead run -f FILE",
    "kustomize": _APPLY,
    "label": "labels are given at the start: fairlead run --label KEY=VALUE",
    "list": _LIST,
    "logout": "registries are logged out of with the engine's own command, as podman logout REGISTRY",
    "ls": _LIST,
    "lscpu": "fairlead topology, fairlead nodes",
    "machine": "fairlead up serves this machine; fairlead --url names another one",
    "manifest": _ENGINE.format(verb="manifest"),
    "metrics": "fairlead gpus and fairlead stats show use now; Prometheus reads 127.0.0.1:9400/metrics",
    "mig-parted": "fairlead mig apply -f FILE; mig-parted's files and verbs",
    "mount": "fairlead cp NAME:/PATH . copies files out; fairlead exec NAME -- ls looks",
    "namespace": "fairlead tenancy list; a namespace is an option: fairlead ps -n NAMESPACE",
    "namespaces": "fairlead tenancy list; a namespace is an option: fairlead ps -n NAMESPACE",
    "network": _ENGINE.format(verb="network"),
    "node": "fairlead nodes",
    "notebook": "fairlead run -d -g 1 -p 8888:8888 IMAGE -- jupyter lab --ip 0.0.0.0",
    "nvidia-container-cli": "fairlead gpus, fairlead cdi generate",
    "nvidia-ctk": "fairlead cdi …, fairlead runtime configure",
    "nvidia-mig-parted": "fairlead mig apply -f FILE; mig-parted's files and verbs",
    "nvidia-smi": "fairlead gpus, -w keeps it up to date; in a container: fairlead run -g 1 IMAGE -- nvidia-smi",
    "nvitop": _GPUS_NOW,
    "nvtop": _GPUS_NOW,
    "options": "fairlead --help",
    "patch": "remove and start it anew: fairlead rm NAME; fairlead run …",
    "pause": "a paused container would keep its GPUs idle: fairlead stop NAME, later fairlead start NAME",
    "play": "fairlead run -f FILE",
    "plugin": "fairlead status, fairlead doctor",
    "pod": "fairlead run -f FILE starts one, fairlead ps lists them",
    "pods": _LIST,
    "proxy": "the service answers on its socket; fairlead status names it",
    "push": _ENGINE.format(verb="push"),
    "rename": "a name is for good: fairlead run --name NAME starts another",
    "replace": "remove and start it anew: fairlead rm NAME; fairlead run …",
    "rollout": "fairlead rm NAME, then fairlead run … again",
    "sacct": "fairlead usage says who held GPUs and for how long, fairlead ps -a what ended",
    "sacctmgr": "fairlead user, fairlead tenancy, fairlead quota",
    "salloc": "fairlead run -it -g N IMAGE -- sh",
    "sattach": "fairlead attach NAME, or fairlead logs -f NAME",
    "sbatch": "fairlead run -d …",
    "scale": "start more of them: fairlead run -d --name NAME --replicas N …",
    "scancel": "fairlead rm NAME",
    "scontrol": "fairlead explain NAME, fairlead nodes, fairlead status",
    "search": _ENGINE.format(verb="search"),
    "serve": "fairlead up",
    "set": "remove and start it anew: fairlead rm NAME; fairlead run …",
    "sh": _SHELL,
    "shell": _SHELL,
    "sinfo": "fairlead nodes",
    "smi": _GPUS,
    "sprio": _QUEUE,
    "squeue": _QUEUE,
    "sreport": "fairlead usage",
    "srun": "fairlead run -g N IMAGE -- COMMAND",
    "ssh": _SHELL,
    "sshare": "fairlead queue ls",
    "sstat": "fairlead stats",
    "stack": "a group of containers is one pod: fairlead run -f FILE",
    "submit": "fairlead run -d …",
    "swarm": "many machines are a Kubernetes cluster's: fairlead --kubeconfig FILE",
    "system": "df: fairlead image ls; prune: fairlead prune; info: fairlead status and fairlead doctor",
    "taint": "kubectl taint on a cluster; a GPU of one machine: fairlead lease quarantine GPU",
    "tenant": "fairlead tenancy list",
    "tenants": "fairlead tenancy list",
    "ui": _CONSOLE,
    "uncordon": "kubectl uncordon NODE on a cluster; one machine: fairlead up",
    "uninstall": "fairlead service uninstall removes the unit; the program goes the way it came: apt, uv or pipx",
    "unpause": "nothing is paused here: fairlead start NAME starts an ended container again",
    "unshare": _ENGINE.format(verb="unshare"),
    "untag": "fairlead rmi NAME takes one name of several away",
    "update": "remove and start it anew; GPUs: fairlead attach, fairlead detach",
    "upgrade": "install the newer one over it, then systemctl restart fairlead: docs/how-to/install.md, Upgrade",
    "version": "fairlead --version",
    "volumes": "fairlead volume ls",
}
"""What to type instead, by a verb that is not here."""

_NOT_GIVEN: Final = "containers get no more of the host than their GPUs"
_MANIFEST: Final = "write a manifest and start it with fairlead run -f FILE"

_RUN: Final[Mapping[str, str]] = {
    "-P": "name each: -p 8080:80",
    "-a": "without -d standard output and error follow, -i adds standard input",
    "--add-host": "containers use the engine's resolver; write /etc/hosts in the image, or at the start of its program",
    "--annotation": f"-l KEY=VALUE; or {_MANIFEST}: metadata.annotations",
    "--attach": "without -d standard output and error follow, -i adds standard input",
    "--blkio-weight": "--cpus and --memory are the limits there are",
    "--cap-add": _NOT_GIVEN,
    "--cgroup-parent": "the service chooses: fairlead settings",
    "--cgroupns": "each container has a cgroup namespace of its own",
    "--cidfile": "fairlead run -d prints the name",
    "--cpu-period": "--cpus N",
    "--cpu-quota": "--cpus N",
    "--cpu-shares": "--cpus N",
    "--cpuset-cpus": "--cpus N",
    "--cpuset-mems": "--memory N",
    "--detach-keys": "Ctrl-P Ctrl-Q leaves it running; fairlead attach NAME comes back to it",
    "--device": "-g N asks for GPUs by number; which ones, the scheduler says",
    "--device-cgroup-rule": _NOT_GIVEN,
    "--dns": "containers use the engine's resolver",
    "--dns-option": "containers use the engine's resolver",
    "--dns-search": "containers use the engine's resolver",
    "--domainname": "--hostname NAME",
    "--env-host": "-e KEY passes one variable on",
    "--expose": "-p HOST:CONTAINER publishes a port; containers of one pod reach each other without",
    "--gidmap": "the service chooses: fairlead settings",
    "--group-add": "-u USER:GROUP",
    "--health-cmd": "probes are not carried out on one machine; on a cluster the kubelet does",
    "--health-interval": "probes are not carried out on one machine; on a cluster the kubelet does",
    "--init": "the image's first program is process 1; put tini in the image where it is needed",
    "--init-container": f"{_MANIFEST}: initContainers",
    "--ip": "the engine gives addresses; fairlead port NAME shows what is published",
    "--ip6": "the engine gives addresses; fairlead port NAME shows what is published",
    "--kernel-memory": "--memory N",
    "--label-file": "-l KEY=VALUE for each",
    "--limits": "--cpus, --memory, --gpus",
    "--link": "containers of one pod share their network: fairlead run -f FILE",
    "--log-driver": "fairlead logs NAME reads the output",
    "--log-opt": "fairlead logs NAME reads the output",
    "--mac-address": "the engine gives addresses",
    "--memory-reservation": "--memory N",
    "--memory-swap": "--memory N",
    "--memory-swappiness": "--memory N",
    "--network-alias": "containers of one pod share their network: fairlead run -f FILE",
    "--no-healthcheck": "probes are not carried out on one machine; on a cluster the kubelet does",
    "--nodelist": f"{_MANIFEST}: nodeSelector",
    "--oom-kill-disable": "--memory N; a container that needs more is ended, and fairlead explain NAME says so",
    "--oom-score-adj": "--memory N; a container that needs more is ended, and fairlead explain NAME says so",
    "--pid": _NOT_GIVEN,
    "--pids-limit": "--ulimit nproc=N",
    "--platform": "images are run as this machine's processor can: fairlead pull NAME fetches that one",
    "--pod": f"{_MANIFEST}: several containers in one pod",
    "--privileged": _NOT_GIVEN,
    "--publish-all": "name each: -p 8080:80",
    "-q": "fairlead run prints what the container prints, and nothing else",
    "--quiet": "fairlead run prints what the container prints, and nothing else",
    "--replace": "fairlead rm -f NAME, then fairlead run --name NAME",
    "--runtime": "the service chooses the engine's runtime: fairlead runtime configure",
    "--security-opt": _NOT_GIVEN,
    "--stop-signal": "a stop sends SIGTERM; another signal: fairlead kill -s SIGNAL NAME",
    "--storage-opt": "-v NAME:/PATH keeps data, --tmpfs /PATH:size=N bounds it",
    "--sysctl": _NOT_GIVEN,
    "--uidmap": "the service chooses: fairlead settings",
    "--userns": "the service chooses: fairlead settings",
    "--uts": _NOT_GIVEN,
    "--volume-driver": "named volumes are folders of this machine: -v NAME:/PATH",
    "--volumes-from": "name each: -v /HOST:/CONTAINER",
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
    "-s": "fairlead image ls",
    "--size": "fairlead image ls",
}

_EVENTS: Final[Mapping[str, str]] = {
    "--filter": "fairlead events pod/NAME, or node/NAME",
    "--since": "fairlead events shows all that are kept, the newest last; -f goes on",
    "--until": "fairlead events shows all that are kept, the newest last; -f goes on",
}
_GPU_LIST: Final[Mapping[str, str]] = {
    "--loop": "fairlead gpus -w",
    "--query-gpu": "fairlead gpus -o json",
    "-L": "fairlead gpus -o wide",
    "-l": "fairlead gpus -w",
    "-q": "fairlead gpus -o json",
}
_RM: Final[Mapping[str, str]] = {
    "--volumes": "a named volume stays: fairlead volume rm NAME, fairlead volume prune",
    "-v": "a named volume stays: fairlead volume rm NAME, fairlead volume prune",
}

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "events": _EVENTS,
    "exec": _EXEC,
    "gpus": _GPU_LIST,
    "logs": _LOGS,
    "ps": _PS,
    "rm": _RM,
    "run": _RUN,
}
"""What to type instead, by verb and an option that the verb does not have."""


_OF_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "image": {
        "history": _ENGINE.format(verb="history"),
        "inspect": "fairlead image ls -o json",
        "push": _ENGINE.format(verb="push"),
    },
    "service": {"create": "fairlead run -d IMAGE", "ls": _LIST, "ps": _LIST},
}
"""What to type instead, by group and a verb that the group does not have."""
_ALIKE: Final = (
    ("ls", "list", "get"),
    ("rm", "remove", "delete", "revoke", "revert"),
    ("create", "add", "new", "set", "apply"),
    ("show", "inspect", "describe"),
)
"""Verbs that mean the same, one row each: the one that a group has is offered in place of the others."""


def word_for(error: click.UsageError) -> str:
    """Return what to type instead of the verb or option that the command line does not have; empty: not known."""
    if isinstance(error, click.NoSuchOption):
        verb = error.ctx.info_name if error.ctx else ""
        return OPTIONS.get(verb or "", {}).get(error.option_name, "")
    if isinstance(error, click.NoSuchCommand) and error.ctx is not None:
        is_root = error.ctx.parent is None
        if is_root:
            return VERBS.get(error.command_name, "")
        group = error.ctx.info_name or ""
        return _OF_GROUPS.get(group, {}).get(error.command_name, "") or _alike(error.ctx, group, error.command_name)
    return ""


def _alike(ctx: click.Context, group: str, verb: str) -> str:
    """Return the command line with the verb that the group has for the one typed; empty: it has none."""
    own = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
    same = next((row for row in _ALIKE if verb in row), ())
    return next((f"fairlead {group} {name}" for name in same if name in own), "")
