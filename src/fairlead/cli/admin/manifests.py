"""`fairlead manifests`: prints the chart as helm renders it with its default values, for `kubectl apply -f -`.

The objects are shipped, not rendered here: `tools/render_chart.py` has the real helm write them. Namespace, image and
profile are set by editing fields; every other value of the chart needs helm.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from fairlead import errors
from fairlead.cli.core import plaintext
from fairlead.silicon.sim import profile
from fairlead.wire.cdi import translate
from fairlead_cdi import yamlfile, yamltext

CHART: Final = Path(__file__).parents[2] / "chart"
"""The chart as it is installed."""
FOLDER: Final = Path(__file__).parents[2] / "manifests"
"""What helm made of it: a folder for kustomize each, `hardware` and `simulated` over `common`."""
NAMESPACE: Final = "fairlead"
"""Namespace of the shipped objects, and name of their release."""
_ACCOUNTS: Final = f"'system:serviceaccount:{NAMESPACE}:"

_SEPARATOR: Final = re.compile(r"^---\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9.:_/-]*[a-z0-9](:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?", re.ASCII)
_SIMULATE: Final = "FAIRLEAD_SILICON_SIMULATE"

Command = TypeVar("Command", bound=Callable[..., object])


def _refused(*names: str, metavar: str = "KEY=VALUE") -> Callable[[Command], Command]:
    """Return an option that only helm carries out; the verb refuses it with the helm command to use."""
    return click.option(*names, multiple=True, metavar=metavar, hidden=True)


@click.command()
@click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="namespace of agent and controllers")
@click.option("--image", default="", metavar="NAME[:TAG]", help="image of all components, where your nodes pull it")
@click.option("--simulate", default="", metavar="PROFILE", help="simulated GPUs on every node: h100x8, for example")
@click.option("--include-crds/--no-crds", "crds", default=True, show_default=True, help="with the kinds' definitions")
@click.option("--create-namespace/--no-create-namespace", "creates", default=True, help="with the Namespace  [default]")
@click.option("--write", type=click.Path(path_type=Path), help="write the chart and kustomize's folders there instead")
@_refused("--set")
@_refused("--set-string")
@_refused("-f", "--values", metavar="FILE")
@_refused("--name", metavar="RELEASE")
def manifests(
    *,
    namespace: str,
    image: str,
    simulate: str,
    crds: bool,
    creates: bool,
    write: Path | None,
    **values: tuple[str, ...],
) -> None:
    """Print the manifests that install Fairlead on a cluster: agent, scheduler, controllers, their rights and policies.

    It is the helm chart with its default values. Other values (docs/reference/chart.md) need helm: --set prints its
    command. To try Fairlead on any cluster: fairlead manifests --simulate h100x8 | kubectl apply -f -
    """
    _assert_name(namespace)
    if any(values.values()):
        raise _needs_helm(namespace, values)
    if image and not _IMAGE.fullmatch(image):
        message = f'"{image}" is not the name of an image'
        raise errors.Invalid(message, reason="ImageInvalid", hint="write NAME, NAME:TAG or NAME@sha256:DIGEST")
    if simulate and simulate not in profile.list_names():
        message = f'there is no profile "{simulate}" (there are: {", ".join(profile.list_names())})'
        raise errors.Invalid(message, reason="ProfileUnknown", hint="choose one of them")
    if write is not None:
        _write(write)
        return
    found = load("simulated" if simulate else "hardware")
    left_out = {kind for kind, wanted in (("CustomResourceDefinition", crds), ("Namespace", creates)) if not wanted}
    kept = (item for item in found if item["kind"] not in left_out)
    plaintext.echo(emit(_edit(item, namespace=namespace, image=image, profile=simulate) for item in kept), nl=False)


def load(folder: str) -> tuple[dict[str, Any], ...]:
    """Return the shipped objects of `hardware` or `simulated`, in an order in which to create them.

    Raises: Unavailable: a file is missing.
    """
    try:
        texts = [(FOLDER / path).read_text("utf-8") for path in ("common/common.yaml", f"{folder}/agent.yaml")]
    except OSError as error:
        message = f"cannot read the manifests in {FOLDER}: {error.strerror}"
        raise errors.Unavailable(message, reason="ManifestsUnreadable", hint="install fairlead anew") from error
    return tuple(item for text in texts for item in parse(text))


@translate.cdi_errors
def parse(text: str) -> list[dict[str, Any]]:
    """Return the objects of YAML documents; empty ones are left out. Raises: ProtocolError: it is not YAML."""
    found = (yamlfile.decode_yaml(part.encode()) for part in _SEPARATOR.split(text))
    return [item for item in found if isinstance(item, dict)]


def emit(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents."""
    return "".join(f"---\n{yamltext.dump(item)}" for item in objects)


def _edit(item: dict[str, Any], *, namespace: str, image: str, profile: str) -> dict[str, Any]:
    """Change an object in place: each field that names the namespace, the image or the profile, and no other."""
    about = item["metadata"]
    if item["kind"] == "Namespace":
        about["name"] = namespace
    for one in (about, *item.get("subjects", ())):
        if "namespace" in one:
            one["namespace"] = namespace
    for condition in item.get("spec", {}).get("matchConditions", ()):
        # Policies name our accounts, whose namespace is part of a user's name.
        condition["expression"] = condition["expression"].replace(_ACCOUNTS, f"'system:serviceaccount:{namespace}:")
    if item["kind"] not in {"DaemonSet", "Deployment"}:
        return item
    for container in item["spec"]["template"]["spec"]["containers"]:
        if image:
            container["image"] = image
        for variable in container["env"]:
            if variable["name"] == _SIMULATE:
                variable["value"] = profile
    return item


def _needs_helm(namespace: str, values: Mapping[str, Sequence[str]]) -> errors.Invalid:
    release = (*values["name"][-1:], NAMESPACE)[0]
    given = [(f"--{key.replace('_', '-')}", text) for key, texts in values.items() if key != "name" for text in texts]
    fixed = ("--include-crds", "--no-hooks", "--set", "namespace.create=true")
    chosen = (word for pair in given for word in pair)
    words = ("helm", "template", release, str(CHART), "-n", namespace, *fixed, *chosen)
    shown = ", ".join(" ".join(pair) for pair in given) or f"--name {release}"
    message = f"{shown}: the chart's values need helm; fairlead manifests prints it with the default ones"
    return errors.Invalid(message, reason="HelmNeeded", hint=f"{shlex.join(words)} | kubectl apply -f -")


def _write(folder: Path) -> None:
    for source, name in ((CHART, "chart"), (FOLDER, "kustomize")):
        target = folder / name
        try:
            shutil.copytree(source, target)
        except FileExistsError as error:
            hint = "name another folder, or remove it"
            raise errors.Invalid(f"{target} is there already", reason="FolderExists", hint=hint) from error
        except OSError as error:
            hint = "name a folder that you may write"
            raise errors.Unavailable(f"cannot write {target}: {error}", reason="FolderUnwritable", hint=hint) from error
    plaintext.echo(
        f"{folder / 'chart'}: helm install fairlead {folder / 'chart'} -n fairlead --create-namespace", err=True
    )
    plaintext.echo(f"{folder / 'kustomize'}: kubectl apply -k {folder / 'kustomize' / 'hardware'}", err=True)


def _assert_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        message = f'namespace name "{name}" is not lower-case letters, digits and dashes, at most 63'
        raise errors.Invalid(message, reason="NameInvalid", hint="choose another")
