"""Fixtures of the system ring: an image, state folders, a running service."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from home import BUSYBOX, Home, make_home, make_image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A busybox image under a name of its own, without any registry."""
    if os.geteuid() != 0 or shutil.which("podman") is None or BUSYBOX is None:
        pytest.skip("needs root, podman and busybox-static")
    name = f"localhost/fairlead-test/box:{os.getpid()}"
    make_image(tmp_path_factory.mktemp("image"), name)
    yield name
    subprocess.run(("podman", "rmi", "-f", name), check=False, capture_output=True)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clear a service that a module's tests share after each of them: CI repeats a failed test once."""
    yield
    for name, value in (getattr(request.node, "funcargs", None) or {}).items():
        if isinstance(value, Home) and name != "home":
            value.clear()


@pytest.fixture
def home(image: str) -> Iterator[Home]:
    """A state folder of its own, no service yet."""
    one = make_home(image)
    yield one
    one.close()
    shutil.rmtree(one.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def service(image: str) -> Iterator[Home]:
    """A running service on 8 simulated H100s, shared by a module's tests."""
    one = make_home(image)
    one.up()
    yield one
    one.close()
    shutil.rmtree(one.folder, ignore_errors=True)
