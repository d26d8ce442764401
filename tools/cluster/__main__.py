"""`python -m tools.cluster`: build a Kubernetes, run it on this machine, use it, end it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from fairlead import errors
from tools.cluster import build, home


def main() -> int:
    """Run one verb."""
    arguments = _parser().parse_args()
    verb = {"build": _build, "up": _up, "down": _down, "list": _list, "kubectl": _kubectl, "exec": _exec}
    try:
        verb[arguments.verb](arguments)
    except errors.FairleadError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  next: {error.hint}", file=sys.stderr)
        return errors.row_of(error).exit
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, default=home.FOLDER, help="holds the clusters (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=build.CACHE, help="holds the programs (default: %(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("build", "build the programs, once"),
        ("up", "bring a cluster up"),
        ("down", "end a cluster"),
        ("list", "show clusters"),
        ("kubectl", "run its kubectl: … kubectl -- get nodes"),
        ("exec", "run a command on its node: … exec -- ctr version"),
    ):
        one = verbs.add_parser(verb, help=text)
        if verb in {"build", "up"}:
            one.add_argument("--version", default=build.DEFAULT_VERSION, choices=build.versions())
        if verb == "build":
            one.add_argument("--ring", action="store_true", help="also what only the tests run: kwok, other engines")
            one.add_argument("--only", choices=("gvisor",), help="this module alone")
        if verb not in {"build", "list"}:
            one.add_argument("--name", default=home.DEFAULT_NAME)
        if verb in {"kubectl", "exec"}:
            one.add_argument("command", nargs="+")
    return parser


def _build(arguments: argparse.Namespace) -> None:
    if arguments.only:
        folders = [build.ensure(build.GVISOR, cache=arguments.cache, say=_say)]
        print(f"{folders[0]}: {', '.join(build.programs(folders[0]))}")
        return
    folders = list(build.ensure_programs(arguments.version, ring=arguments.ring, cache=arguments.cache, say=_say))
    if arguments.ring:
        folders += [build.ensure(module, cache=arguments.cache, say=_say) for module in build.OLDER]
    for folder in folders:
        print(f"{folder}: {', '.join(build.programs(folder))}")


def _up(arguments: argparse.Namespace) -> None:
    paths = build.ensure_programs(arguments.version, cache=arguments.cache, say=_say)
    begun = time.monotonic()
    one = home.up(arguments.name, version=arguments.version, folder=arguments.folder, paths=paths, say=print)
    print(f"""
Kubernetes {one.version} is up after {time.monotonic() - begun:.1f} s: node {one.node}, API server {one.site.server}

  export KUBECONFIG={one.kubeconfig}
  export PATH={Path(one.program("kubectl")).parent}:$PATH
  kubectl get nodes

  kubelet's plugins  {one.device_plugins}
  CDI specs          {one.cdi}
  logs               {one.folder / "logs"}
  on the node        python -m tools.cluster exec --name {one.name} -- ctr -n k8s.io images list
  end it             python -m tools.cluster down --name {one.name}""")


def _down(arguments: argparse.Namespace) -> None:
    begun = time.monotonic()
    home.end(arguments.name, arguments.folder)
    print(f"cluster {arguments.name} is gone after {time.monotonic() - begun:.1f} s")


def _list(arguments: argparse.Namespace) -> None:
    for one in home.clusters(arguments.folder):
        state = "runs" if one.host.init.is_alive else "ended"
        print(f"{one.name}\t{one.version}\t{state}\t{one.site.server}\t{one.kubeconfig}")


def _kubectl(arguments: argparse.Namespace) -> None:
    command = home.find(arguments.name, arguments.folder).kubectl(*arguments.command)
    os.execv(command[0], command)  # noqa: S606


def _exec(arguments: argparse.Namespace) -> None:
    one = home.find(arguments.name, arguments.folder).host
    command = one.command(*arguments.command)
    os.execvpe(command[0], command, one.environment)  # noqa: S606


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
