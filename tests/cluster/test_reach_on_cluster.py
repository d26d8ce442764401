"""The verbs that reach into containers, against real pods: files, processes, variables, volumes.

What a cluster cannot do is answered with what can; both are here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from fairlead import errors
from tests.cluster import pods
from tests.cluster.program import Program
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]


@pytest.fixture
def program(cluster: home.Cluster) -> Program:
    return Program(cluster, cluster.kubeconfig)


def test_files_go_into_a_pod_and_out_of_it(
    cluster: home.Cluster, space: pods.Space, program: Program, tmp_path: Path
) -> None:
    space.start("stays", "exec sleep 3600")
    space.until_phase("stays", "Running")
    folder = tmp_path / "given"
    (folder / "below").mkdir(parents=True)
    sent = os.urandom(2 << 20)
    (folder / "below" / "two words").write_bytes(sent)
    (folder / "link").symlink_to("below/two words")

    program.show("cp", str(folder), "stays:/root")
    assert program.show("exec", "stays", "--", "ls", "/root/given") == "below\nlink\n"
    program.show("cp", "stays:/root/given", str(tmp_path / "back"))
    assert (tmp_path / "back" / "below" / "two words").read_bytes() == sent
    assert (tmp_path / "back" / "link").readlink() == Path("below/two words")
    for source, target in (("stays:/nosuch", str(tmp_path)), (str(folder), "stays:/no/such")):
        refused = program.run("cp", source, target)
        assert (refused.returncode != 0, "such" in refused.stderr) == (True, True), refused.stderr
        assert "bug" not in refused.stderr


def test_processes_are_listed_and_signalled_by_the_images_own_programs(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    space.start("stays", "trap 'echo heard; exit 4' USR1; echo ready; while :; do sleep 0.2; done")
    space.until_phase("stays", "Running")
    rows = program.rows("top", "stays")
    assert any(row["PID"] == "1" and "trap" in row["COMMAND"] for row in rows), rows
    assert program.show("kill", "-s", "USR1", "stays") == "stays\n"
    ended = program.run("wait", "stays")
    assert (ended.returncode, ended.stdout) == (4, "failed\n"), ended.stderr
    assert program.show("logs", "stays").splitlines() == ["ready", "heard"]
    gone = program.run("kill", "stays")
    assert (gone.returncode, "not running" in gone.stderr) == (4, True), gone.stderr


def test_a_process_has_variables_and_a_folder_by_the_images_shell(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    space.start("stays", "exec sleep 3600")
    space.until_phase("stays", "Running")
    asked = ("exec", "-e", "A=one; two", "-e", "B=", "-w", "/usr", "stays", "--", "sh", "-c", 'echo "$A,$B,$PWD"')
    assert program.show(*asked) == "one; two,,/usr\n"
    lost = program.run("exec", "-w", "/nosuch", "stays", "--", "true")
    assert (lost.returncode, "/nosuch" in lost.stderr) == (126, True), lost.stderr
    refused = program.run("exec", "-u", "nobody", "stays", "--", "true")
    assert (refused.returncode, "kubectl debug" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (("stats", "--no-stream", "stays"), "stays"),
        (("restart", "-t", "1", "stays"), "stays"),
        (("start", "stays"), "stays"),  # it runs: nothing is to be started
        (("port", "stays", "80"), "no port of the host"),
    ],
)
def test_what_a_cluster_does_in_its_own_way_and_cannot_do_is_answered(
    cluster: home.Cluster, space: pods.Space, program: Program, line: tuple[str, ...], word: str
) -> None:
    space.start("stays", "exec sleep 3600")
    space.until_phase("stays", "Running")
    done = program.run(*line)
    assert word in done.stdout + done.stderr, (done.returncode, done.stdout, done.stderr)
    assert "bug" not in done.stderr


def test_named_volumes_are_claims_of_the_cluster(
    cluster: home.Cluster, server: api.API, space: pods.Space, program: Program
) -> None:
    sizeless = program.run("run", "-d", "-v", "data:/data", image.BUSYBOX)
    assert (sizeless.returncode, "volume create data --size" in sizeless.stderr) == (2, True), sizeless.stderr
    assert program.show("volume", "create", "data", "--size", "1Gi") == "data\n"
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    try:
        found = server.get(f"{claims}/data")
        assert found["spec"]["resources"]["requests"]["storage"] == "1Gi"
        (shown,) = program.rows("volume", "ls")
        assert (shown["NAME"], shown["STATE"]) == ("data", "pending")
        program.show("run", "-d", "--name", "user", "-v", "data:/data", image.BUSYBOX)
        refused = program.run("volume", "rm", "data")
        assert (refused.returncode, "in use by user" in refused.stderr) == (4, True), refused.stderr
        program.show("rm", "-f", "user")
        assert program.show("volume", "prune", "-f") == "data\n"
    finally:
        with contextlib.suppress(errors.NotFound):
            server.delete(f"{claims}/data")
