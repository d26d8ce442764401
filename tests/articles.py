"""The articles' manifests, and stand-ins for the images they name: no registry is asked, no CUDA is there.

One image answers to every name. It does what its pods show: count the GPUs that the container may open, and stay.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parent.parent / "examples" / "articles"
CUDA: Final = "docker.io/nvidia/cuda:11.8.0-base-ubuntu22.04"
IMAGES: Final = (
    CUDA,
    "docker.io/nvidia/cuda:11.8.0-devel-ubuntu22.04",
    "docker.io/nvidia/cuda:11.8-devel-ubuntu22.04",
    "nvcr.io/nvidia/pytorch:23.10-py3",
)
COMMAND: Final = (
    "/bin/sh",
    "-c",
    'id -u; env | grep CUDA; nvidia-smi -L; touch /mark 2>&1; echo "root: $?"; exec sleep 3600',
)
"""What the images run where a pod names no command."""
FILES: Final = {
    # the article's program in what simulated silicon has of it: the count, not the allocation of memory
    "cuda_malloc_test": b"#!/bin/sh\necho \"Visible GPUs: $(nvidia-smi -L | grep -c '^GPU ')\"\n",
    "bin/bash": b'#!/bin/sh\nexec /bin/sh "$@"\n',
}


def path(name: str) -> Path:
    """Return where a manifest lies."""
    return FOLDER / f"{name}.yaml"


def load(name: str) -> dict[str, Any]:
    """Return a manifest as it is written."""
    content: dict[str, Any] = yaml.safe_load(path(name).read_text())
    return content


def smaller(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a pod that asks for hardly any cpu and memory, and for as many GPUs as it did."""
    one = copy.deepcopy(manifest)
    one["spec"]["terminationGracePeriodSeconds"] = 0
    for container in one["spec"]["containers"]:
        for amounts in container["resources"].values():
            amounts.update({name: small for name, small in (("cpu", "50m"), ("memory", "64Mi")) if name in amounts})
    return one


def changed(manifest: dict[str, Any], *, name: str = "", **spec: Any) -> dict[str, Any]:
    """Return a copy of a pod under another name, with fields of its spec replaced."""
    one = copy.deepcopy(manifest)
    one["metadata"]["name"] = name or one["metadata"]["name"]
    one["spec"].update(spec)
    return one
