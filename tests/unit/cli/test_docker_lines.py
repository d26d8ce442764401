"""A docker user's commonest lines and other programs' verbs: each works here, or says what to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from fairlead.cli import foreign, verbs
from tests.unit.cli.liveservice import Service, serving

_EMPTY_TAR = bytes(10240)

WORK = (
    "run demo echo hello",
    "run --rm demo true",
    "run -d --rm demo true",
    "run -d --name d1 demo sleep 60",
    "run -d --name d2 -p 8080:80 demo sleep 60",
    "run -d --name d3 -p 127.0.0.1:8081:80/tcp demo sleep 60",
    "run --rm -e A=1 demo env",
    "run --rm -e HOME demo env",
    "run --rm --gpus all demo true",
    "run --rm --gpus 2 demo true",
    "run --rm -v /tmp:/data:ro demo true",
    "run --rm -v ./here:/data demo true",
    "run --rm --mount type=bind,source=/tmp,target=/data demo true",
    "run --rm --tmpfs /scratch:size=64m demo true",
    "run --rm --shm-size 1g demo true",
    "run --rm -m 512m --cpus 1.5 demo true",
    "run --rm -w /tmp demo true",
    "run --rm -u 1000:1000 demo true",
    "run --rm -u nobody demo true",
    "run --rm -u app:video demo true",
    "run --rm --network none demo true",
    "run --rm --net=host demo true",
    "run --rm --ipc=host demo true",
    "run --rm --ulimit memlock=-1 --ulimit stack=67108864 demo true",
    "run --rm --hostname box demo hostname",
    "run --rm -h box demo hostname",
    "run --rm --entrypoint echo demo hello",
    "run --rm -l team=red demo true",
    "run --rm --restart no demo true",
    "run -d --restart unless-stopped --name d4 demo sleep 60",
    "run --rm --pull never demo true",
    "run --rm --stop-timeout 3 demo true",
    "run --rm --read-only --tmpfs /tmp demo true",
    "run --rm --cap-drop ALL demo true",
    "run --rm --cap-drop CAP_NET_RAW --cap-drop mknod demo true",
    "-v",
    "ps",
    "ps -a",
    "ps -n 2",
    "ps -aq",
    "ps --filter status=running",
    "ps -a --no-trunc",
    "ps --format '{{.Names}}\\t{{.Status}}'",
    "logs web",
    "logs --tail 1 -t web",
    "logs -n 5 web",
    "logs --since 10m web",
    "exec web echo hello",
    "exec -u nobody web id -u",
    "exec -e A=1 -e HOME web env",
    "exec -w /tmp web pwd",
    "inspect web",
    "inspect -f '{{.State.Status}}' web",
    "top web",
    "top",
    "stats --no-stream",
    "port d2",
    "cp web:/tmp here.tar",
    "kill -s HUP web",
    "images",
    "image ls",
    "tag demo demo2",
    "rmi demo2",
    "stop -t 0 d1",
    "rm -f d2 d3 d4",
    "restart -t 0 web",
    "wait --timeout 5 --state started web",
    "prune -f",
    "image prune -f",
    "volume create data",
    "run --rm -v data:/data demo true",
    "run --rm --mount type=volume,src=cache,dst=/cache demo true",
    "volume ls -q",
    "volume inspect cache",
    "volume rm cache",
    "volume prune -f",
)
"""Each succeeds, in this order; `web` runs."""

ANSWERED = (
    "run --privileged demo",
    "run --cap-add SYS_ADMIN demo",
    "run --device /dev/fuse demo",
    "run --pid host demo",
    "run --security-opt seccomp=unconfined demo",
    "run --volumes-from web demo",
    "run --link web demo",
    "run -P demo",
    "run --name Train demo",
    "run --name n_1 demo",
    "run --restart on-failure:3 demo",
    "run --env-file nosuch demo",
    "run nosuch true",
    "rmi nosuch",
    "run -g 1.5 demo",
    "run -g -1 demo",
    "run -m lots demo",
    "run --cpus many demo",
    "run --shm-size 1q demo",
    "run -u -x demo",
    "run --gpus '\"device=0,1\"' demo",
    "run -v my_data:/data demo",
    "run -v :/data demo",
    "volume create data --size 10Gi",
    "volume rm data",
    "run --network container:web demo",
    "exec -u nobody:-x web true",
    "exec -w tmp web pwd",
    "exec -e =1 web env",
    "exec -d web true",
    "ps --size",
    "run --platform linux/amd64 demo",
    "run --pids-limit 10 demo",
    "run --expose 80 demo",
    "run --detach-keys x demo",
    "run --network-alias a demo",
    "run --log-opt a=b demo",
    "run --replace --name d1 demo",
    "run --memory-reservation 1g demo",
    "run --oom-kill-disable demo",
    "run --label-file labels demo",
    "run --quiet demo",
    "run -a stdout demo",
    "run --cap-drop no-such-thing demo",
    "run 'Bad Name' true",
    "run demo --gpus 2",
    "rm -v web",
    "gpus -L",
    "image history demo",
    "image inspect demo",
    "service ls",
    "logs --details web",
    "rm web",
)
"""Each is refused with what to type."""

FOREIGN = (
    "attach build commit container create cp diff events exec export history images import info inspect kill load",
    "login logs network pause port ps pull push rename restart rm rmi run save search start stats stop system tag top",
    "unpause update version volume wait apply get describe delete create scale drain cordon",
    "compose context secret swarm stack node plugin manifest builder buildx checkpoint mount unshare machine kube play",
    "generate healthcheck init port-forward proxy",
)
"""Verbs of docker, podman and kubectl."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("docker")
    with pytest.MonkeyPatch.context() as patch, serving(folder) as service:
        patch.chdir(folder)
        service.env["HOME"] = str(folder)
        assert (
            service.fairlead("run", "-d", "--name", "web", "demo", "sh", "-c", "echo ready; sleep 600").exit_code == 0
        )
        assert service.fairlead("wait", "--state", "started", "web").exit_code == 0
        packed = service.fairlead("cp", "-", "web:/tmp", stdin=_EMPTY_TAR)
        assert packed.exit_code == 0, packed.stderr
        yield service


def test_the_lists_are_as_long_as_they_promise() -> None:
    assert len({*WORK, *ANSWERED}) >= 45
    assert len(set(" ".join(FOREIGN).split())) >= 40


def test_the_lines_that_a_docker_user_types_work(live: Service) -> None:
    """One test, since the lines build on each other."""
    results = {line: live.fairlead(*shlex.split(line)) for line in WORK}
    assert {line: result.stderr for line, result in results.items() if result.exit_code} == {}


def test_the_short_h_of_run_is_the_hostname_and_alone_the_help(live: Service) -> None:
    made = live.fairlead("run", "--dry-run", "-h", "box", "demo")
    assert (made.exit_code, made.stdout[:5]) == (0, "demo ")
    assert live.fairlead("run", "-h").stdout.startswith("Usage: fairlead run ")


def test_a_program_that_comes_with_a_gpu_is_not_looked_for_in_the_image(live: Service) -> None:
    result = live.fairlead("run", "--rm", "demo", "--", "nvidia-smi")
    assert result.exit_code == 127
    assert "nvidia-smi comes with a GPU, and none was asked for: fairlead run -g 1" in result.stderr
    assert "came after it" not in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("commit web", "podman ps --filter label=io.kubernetes.pod.name=NAME"),
        ("inspect localhost/demo:latest", "fairlead image ls -o json"),
        ("logs demo:latest", "fairlead ps -a"),
        ("upgrade", "docs/how-to/install.md"),
    ],
)
def test_a_hint_says_what_works(live: Service, line: str, said: str) -> None:
    assert said in live.fairlead(*shlex.split(line)).stderr


@pytest.mark.parametrize("line", ANSWERED)
def test_a_line_that_does_not_work_says_what_to_type(live: Service, line: str) -> None:
    result = live.fairlead(*shlex.split(line))
    assert result.exit_code not in {0, 70}, result.stdout
    assert "hint:" in result.stderr
    assert "Pod" not in result.stderr


@pytest.mark.parametrize("verb", sorted(set(" ".join(FOREIGN).split())))
def test_a_verb_of_another_program_is_ours_or_is_answered(verb: str) -> None:
    assert (verb in verbs.VERBS) != (verb in foreign.words().verbs), verb


def test_ps_n_shows_the_newest_containers_as_docker_has_it(live: Service) -> None:
    assert live.fairlead("run", "demo", "true").exit_code == 0
    everything = live.fairlead("ps", "-aq").stdout.split()
    (newest,) = live.fairlead("ps", "-n", "1", "-q").stdout.split()
    assert newest in everything
    assert sorted(live.fairlead("ps", "-n", "1000", "-q").stdout.split()) == sorted(everything)
    assert live.fairlead("ps", "-n", "default", "-aq").stdout.count("\n") > 2
    assert live.fairlead("ps", "-n", "9" * 5000).exit_code == 0


def test_options_after_the_image_are_told_apart_from_a_program_that_is_missing(live: Service) -> None:
    assert "come before the image" in live.fairlead("run", "--rm", "demo", "--gpus", "2").stderr
    assert "come before the image" not in live.fairlead("run", "--rm", "demo", "nosuchprogram").stderr
