"""What docker's options become: hosts, name servers, a health check, a free port, several values."""

from __future__ import annotations

import socket
import time

import pytest

from fairlead import errors
from fairlead.plan.claim import where
from fairlead.plan.pod import machine
from fairlead.plan.pod.network import resolver
from fairlead.serve.admission import freeport
from fairlead.serve.admission.request import ContainerRequest, HealthRequest, HostRequest, PortRequest, pod_of
from fairlead.serve.v1.containers import view
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import Lifecycle
from fairlead.wire.text import timestamp


def made(**fields: object) -> core.Pod:
    return pod_of(ContainerRequest(image="demo", **fields), resource="nvidia.com/gpu", scheduler_name="")  # type: ignore[arg-type]  # fields of a request


def test_hosts_servers_and_a_check_reach_the_pod() -> None:
    check = HealthRequest(command=("true",), interval_s=5, timeout_s=2, retries=4, start_period_s=60)
    pod = made(hosts=(HostRequest(name="db", address="10.0.0.7"),), dns=("10.0.0.53",), health=check)
    assert pod.spec.host_aliases == (core.HostAlias(ip="10.0.0.7", hostnames=("db",)),)
    assert pod.spec.dns_policy == "None"
    assert pod.spec.dns_config == core.PodDNSConfig(nameservers=("10.0.0.53",))
    probe = pod.spec.containers[0].readiness_probe
    assert probe is not None
    assert probe.exec is not None
    assert (probe.exec.command, probe.period_seconds, probe.timeout_seconds) == (("true",), 5, 2)
    assert (probe.failure_threshold, probe.initial_delay_seconds) == (4, 60)
    assert pod.spec.containers[0].liveness_probe is None  # it ends nothing


@pytest.mark.parametrize(
    ("dns", "network", "is_refused"),
    [
        (("10.0.0.1", "fd00::1"), "", False),
        (("dns.lab",), "", True),
        (("fe80::1%eth0",), "", True),
        (("10.0.0.1\n--privileged",), "", True),
        (("10.0.0.1",) * 4, "", True),
        (("10.0.0.1",), "none", True),
        (("10.0.0.1",), "host", False),
    ],
)
def test_name_servers_are_addresses_and_need_a_network(dns: tuple[str, ...], network: str, is_refused: bool) -> None:
    assert bool(tuple(resolver.problems(made(dns=dns, network=network).spec))) is is_refused


def test_what_a_process_is_beside_its_program_reaches_the_pod() -> None:
    pod = made(groups=("44", "video"), init=True, stop_signal="SIGINT", dns=("10.0.0.53",), dns_searches=("lab",))
    assert pod.spec.security_context == core.SecurityContext(supplemental_groups=(44,))
    assert pod.spec.machine == core.MachineOptions(groups=("video",))
    assert pod.spec.share_process_namespace is True
    assert pod.spec.containers[0].lifecycle == Lifecycle(stop_signal="SIGINT")
    assert pod.spec.dns_config == core.PodDNSConfig(nameservers=("10.0.0.53",), searches=("lab",))
    options = made(dns_options=("ndots:1", "rotate")).spec
    assert (options.dns_policy, resolver.options(options.dns_config or core.PodDNSConfig())) == (
        "",
        ("ndots:1", "rotate"),
    )


@pytest.mark.parametrize("group", ["-1", "a:b", "--privileged", "", "x\0", "a b"])
def test_a_group_is_a_number_or_a_name(group: str) -> None:
    assert any("groups" in text for text in machine.problems(made(groups=(group,)).spec))


@pytest.mark.parametrize(
    ("ready", "age_s", "word"), [(True, 1, "healthy"), (False, 1, "starting"), (False, 999, "unhealthy")]
)
def test_health_is_said_in_dockers_words(ready: bool, age_s: int, word: str) -> None:
    pod = made(health=HealthRequest(command=("true",), interval_s=10, retries=3))
    (spec,) = pod.spec.containers
    since = timestamp.emit(time.time() - age_s)
    running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=since))
    status = core.ContainerStatus(name=spec.name, ready=ready, state=running)
    assert view._part(spec, status, is_init=False).health == word
    (bare,) = made().spec.containers
    assert view._part(bare, status, is_init=False).health == ""


async def test_a_free_port_is_chosen_and_no_other_pods() -> None:
    store = MemoryStore()
    wanted = ContainerRequest(
        image="demo",
        ports=tuple(PortRequest(host_port=0, container_port=one, host_ip="127.0.0.1") for one in (80, 81)),
    )
    found = await freeport.chosen(wanted, store, is_here=True)
    first, second = (one.host_port for one in found.ports)
    assert first != second
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", first))
    assert await freeport.chosen(found, store, is_here=False) is found
    with pytest.raises(errors.Invalid, match="on a cluster"):
        await freeport.chosen(wanted, store, is_here=False)
    elsewhere = ContainerRequest(
        image="demo", ports=(PortRequest(host_port=0, container_port=80, host_ip="192.0.2.7"),)
    )
    with pytest.raises(errors.Invalid, match=r"192\.0\.2\.7"):
        await freeport.chosen(elsewhere, store, is_here=True)


@pytest.mark.parametrize("address", ["localhost", "db.internal", "\ud800", "127.1", "fe80::1%lo", "a\0b"])
async def test_a_free_port_is_of_an_address_and_no_name_is_looked_up(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(*_: object) -> None:
        raise AssertionError("a socket is bound to what may be a name")

    monkeypatch.setattr(freeport.socket.socket, "bind", bound)  # type: ignore[attr-defined]  # the module it imported
    wanted = ContainerRequest(image="demo", ports=(PortRequest(host_port=0, container_port=80, host_ip=address),))
    with pytest.raises(errors.Invalid, match="is not an IP address"):
        await freeport.chosen(wanted, MemoryStore(), is_here=True)


def test_a_condition_may_have_several_values() -> None:
    (one,) = where.parse('uuid=GPU-a|GPU-"b').selectors
    assert one.endswith('.uuid in ["GPU-a", "GPU-\\"b"])')
    assert where.parse("numa!=0|1").selectors[0].endswith("in [0, 1])")
    assert "!(" in where.parse("numa!=0|1").selectors[0]
    for text in ("numa=0|x", "numa>=0|1", f"uuid=a|{'b' * 65}"):
        with pytest.raises(errors.Invalid):
            where.parse(text)
