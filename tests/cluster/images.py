"""Fairlead's own image for the cluster ring: built by the tool that `make image` runs, imported into the node.

`fairlead_image` is what a test takes that runs it in pods. `tests/cluster/setup.sh` has built it; where the tree has
changed since, it is built anew, which takes seconds because only the last layer differs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tools.cluster import home
from tools.image import build, builder

_BUILD_S = 2400
_LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")  # this machine's root may not raise its own
_LOCKED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")


@dataclass(frozen=True)
class Local:
    """The image in the builder's store, run without a cluster."""

    built: build.Image

    def run(self, *arguments: str, program: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run it as its own user, locked down; `program` stands in for its entry point."""
        entry = (f"--entrypoint={program}",) if program else ()
        fixed = ("run", "--rm", "--network=none", *_LIMITS, *_LOCKED)
        argv = builder.command(*fixed, *entry, self.built.id, *arguments)
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Where the image is not there yet, give tests the time to build it: the first one waits."""
    waiting = [item for item in items if "built_image" in getattr(item, "fixturenames", ())]
    if waiting and build.current() is None:
        for item in waiting:
            own = item.get_closest_marker("timeout")
            item.add_marker(pytest.mark.timeout(_BUILD_S + (own.args[0] if own else 60)), append=False)


@pytest.fixture(scope="session")
def built_image() -> build.Image:
    """The image of the tree as it is, as an archive."""
    if os.geteuid() != 0:
        pytest.skip("building an image without a registry needs root")
    return build.ensure_image()


@pytest.fixture(scope="session")
def local_image(built_image: build.Image) -> Local:
    """The image to be run by podman."""
    if not builder.exists(built_image.id):
        builder.podman("load", "--quiet", f"--input={built_image.path}")
    return Local(built_image)


@pytest.fixture(scope="session")
def fairlead_image(cluster: home.Cluster, built_image: build.Image) -> str:
    """Name of the image, as pods write it, after it was imported into the cluster's node (`imagePullPolicy: Never`)."""
    cluster.load_image(built_image.path)
    return built_image.name
