"""A real cluster for a session, the agent on its node, and pods that are gone after each test.

    .venv/bin/pytest tests/cluster [--kubernetes-version 1.34 --kubernetes-version 1.36]

The programs must have been built (`tests/cluster/setup.sh`); the fixtures never spend minutes on a build.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster import denials, node, pods
from tests.cluster.images import built_image, fairlead_image, local_image, pytest_collection_modifyitems  # noqa: F401
from tools.cluster import api, build, home


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubernetes-version",
        action="append",
        choices=build.versions(),
        help=f"minor version of the cluster ring, repeatable (default: {build.DEFAULT_VERSION})",
    )
    parser.addoption("--claims", type=int, default=60, help="claims that come and go over kills: about ten a minute")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs root and the programs of tests/cluster/setup.sh")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kubernetes_version" in metafunc.fixturenames:
        # the option is known only when pytest was started on this folder
        chosen = metafunc.config.getoption("kubernetes_version", None) or [build.DEFAULT_VERSION]
        metafunc.parametrize("kubernetes_version", chosen, scope="session")


@pytest.fixture(scope="session")
def cluster(kubernetes_version: str) -> Iterator[home.Cluster]:
    """A cluster of one node, shared by every test of its version."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root")
    paths = [build.folder_of(module) for module in build.modules(kubernetes_version, ring=True)]
    if missing := [str(path) for path in paths if not path.is_dir()]:
        pytest.fail(f"run tests/cluster/setup.sh {kubernetes_version} first: {missing} are not built")
    home.sweep()  # of sessions that were killed
    name = f"t{os.getpid()}-{kubernetes_version.replace('.', '')}"
    one = home.up(name, version=kubernetes_version, paths=tuple(paths), owned=True)
    yield one
    one.down()


@pytest.fixture(scope="session")
def denied(cluster: home.Cluster) -> Iterator[denials.Denials]:
    """What the API server denied to programs of ours; what came after the last test is an error of the session's."""
    one = denials.Denials(cluster)
    yield one
    assert one.take() == []


@pytest.fixture(autouse=True)
def nothing_of_ours_is_denied(request: pytest.FixtureRequest) -> Iterator[None]:
    """No program of ours asks, in a test or on the way to it, what its role does not allow."""
    if "cluster" not in request.fixturenames:
        yield
        return
    found: denials.Denials = request.getfixturevalue("denied")
    yield
    assert found.take() == [], "a role lacks a right that its program uses, or the program asks for too much"


@pytest.fixture
def server(cluster: home.Cluster) -> Iterator[api.API]:
    """The administrator's connection."""
    with cluster.api() as connection:
        yield connection


@pytest.fixture
def space(cluster: home.Cluster, server: api.API) -> Iterator[pods.Space]:
    """The default namespace; every pod in it is gone afterwards."""
    one = pods.Space(server, pods.DEFAULT)
    yield one
    one.clear()


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """`fairlead agent` on the node, with eight simulated H100s the kubelet knows."""
    with node.running(node.Agent(cluster, node.PRODUCT), server) as one:
        yield one


@pytest.fixture
def breakable_agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """The same agent, with silicon that a test can break."""
    with node.running(node.Agent(cluster, node.BREAKABLE), server) as one:
        yield one
