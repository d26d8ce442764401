"""Have the real helm render the chart, and write what it says below `src/fairlead/manifests`.

`python -m tools.render_chart` rewrites the files, and before them what of the chart is made from tables: the schema of
the agent's settings (`tools.render_schema`), the policy on tenants' pods (`tools.render_admission`). The programs of
the cluster ring have helm. Two renders are made, with the default values and with simulated silicon. Objects that are
the same in both go to `common`, the others, which is the agent alone, beside it. The first line of each file has a
fingerprint of the chart and of all files' content: the house ring compares it without helm, the cluster ring renders
it again.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fairlead.cli.admin import manifests
from tools import render_admission, render_schema
from tools.cluster import build

_MADE: Final = "# Made by helm: python -m tools.render_chart; fingerprint sha256:"
_RENDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "hardware": (),
    "simulated": ("--set", "silicon.simulate=h100x8"),
}
_ORDER: Final = (
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "Lease",
    "DaemonSet",
    "Deployment",
)
"""Order in which objects can be created one after another; a kind that is not here must be put in."""
_README: Final = "# kubectl apply -k FOLDER; another namespace or image: docs/how-to/kubernetes.md"


def helm() -> Path:
    """Return the ring's helm. Raises SystemExit where it has not been built."""
    module = next(one for one in build.SHARED if one.name == "helm")
    program = build.folder_of(module) / "helm"
    if not program.exists():
        raise SystemExit(f"no {program}: run tests/cluster/setup.sh --play")
    return program


def template(*arguments: str, name: str = manifests.NAMESPACE, namespace: str = manifests.NAMESPACE) -> str:
    """Return what helm renders. Raises SystemExit with its words."""
    command = (str(helm()), "template", name, str(manifests.CHART), "-n", namespace, "--include-crds", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def files() -> dict[str, str]:
    """Return every file by its path, as helm renders the chart now."""
    fixed = ("--no-hooks", "--set", "namespace.create=true")
    rendered = {name: _sorted(template(*fixed, *values)) for name, values in _RENDERS.items()}
    first, *others = rendered.values()
    common = [item for item in first if all(item in other for other in others)]
    bodies = {"common/common.yaml": manifests.emit(common), "common/kustomization.yaml": _kustomization("common.yaml")}
    for name, objects in rendered.items():
        own = [item for item in objects if item not in common]
        bodies[f"{name}/agent.yaml"] = manifests.emit(own)
        bodies[f"{name}/kustomization.yaml"] = _kustomization("../common", "agent.yaml")
    made = f"{_MADE}{fingerprint(bodies)}\n"
    return {path: made + body for path, body in bodies.items()}


def _sorted(text: str) -> list[dict[str, Any]]:
    return sorted(manifests.parse(text), key=lambda item: _ORDER.index(item["kind"]))


def _kustomization(*resources: str) -> str:
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}
    return f"{_README}\n{manifests.emit([kind])}"


def fingerprint(bodies: Mapping[str, str]) -> str:
    """Return a digest of the chart's files and of what was rendered, without the line that holds it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in manifests.CHART.rglob("*") if path.is_file()):
        digest.update(json.dumps([str(path.relative_to(manifests.CHART)), path.read_text("utf-8")]).encode())
    digest.update(json.dumps(sorted(bodies.items())).encode())
    return digest.hexdigest()


def committed() -> dict[str, str]:
    """Return the files as they are, by path."""
    found = sorted(path for path in manifests.FOLDER.rglob("*") if path.is_file())
    return {str(path.relative_to(manifests.FOLDER)): path.read_text("utf-8") for path in found}


def is_current(shipped: Mapping[str, str]) -> bool:
    """Tell whether every file carries the fingerprint of the chart and of these files; needs no helm."""
    parts = {path: text.split("\n", 1) for path, text in shipped.items()}
    wanted = f"{_MADE}{fingerprint({path: rest for path, (_, rest) in parts.items()})}"
    return bool(parts) and all(first == wanted for first, _ in parts.values())


def main() -> int:
    """Rewrite the files, and what of the chart itself is made from tables of the program."""
    for made in (render_schema, render_admission):
        made.path().write_text(made.text(), "utf-8")
    wanted = files()
    for path in committed().keys() - wanted.keys():
        (manifests.FOLDER / path).unlink()
    for path, text in wanted.items():
        target = manifests.FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
