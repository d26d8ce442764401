"""The client of libnvfm against a stub compiled from our statement: lattices, codes, and what a Manager says wrong."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.silicon.fabric import abi, address, nvfm
from tests.fabricstub import library
from tests.fabricstub.lattice import LATTICES
from tests.fabricstub.manager import V2
from tests.unit.silicon.fabric.conftest import Bench

PUBLISHED = {"ConnectParamsV1": 0x0100010C, "ConnectParamsV2": 0x02000110, "PartitionList": 0x0102030C}


def test_version_words_are_the_published_ones() -> None:
    said = {kind.__name__: abi.version_word(kind) for kind in abi.VERSIONED}
    rest = {"ActivatedList": 0x01000108, "FailedDevices": 0x010028BC, "UnsupportedList": 0x01001208}
    assert said == PUBLISHED | rest


@pytest.mark.parametrize("name", LATTICES)
def test_a_lattice_arrives_as_the_manager_has_it(bench: Bench, name: str) -> None:
    lattice = LATTICES[name]
    bench.start(lattice)
    found = bench.connect().list_partitions()
    assert {one.id: one.modules for one in found} == lattice.partitions
    assert {one.links for one in found if len(one.gpus) == 2} == {2 * lattice.links}
    assert {one.links for one in found if len(one.gpus) == 1} == {0}


def test_activation_is_seen_in_the_list_and_asking_twice_changes_nothing(bench: Bench) -> None:
    manager = bench.start()
    made = bench.connect()
    for _ in range(2):
        made.activate(2)
    assert [one.id for one in made.list_partitions() if one.is_active] == [2]
    for _ in range(2):
        made.deactivate(2)
    assert not any(one.is_active for one in made.list_partitions())
    assert manager.journal == ["activate 2", "deactivate 2"]


def test_an_overlap_is_a_conflict_that_says_what_to_do(bench: Bench) -> None:
    bench.start()
    made = bench.connect()
    made.activate(3)
    with pytest.raises(errors.Conflict, match="RESOURCE_IN_USE, -12") as caught:
        made.activate(1)
    assert caught.value.reason == "FabricResourceInUse"
    assert "deactivate" in str(caught.value.hint)


def test_a_partition_that_is_not_there_is_an_argument_that_is_not_taken(bench: Bench) -> None:
    bench.start()
    with pytest.raises(errors.ProtocolError, match="BADPARAM"):
        bench.connect().activate(99)
    with pytest.raises(errors.Invalid):
        bench.connect().activate(2**32)


def test_in_use_is_not_taken_for_active_where_the_list_says_otherwise(bench: Bench) -> None:
    bench.start().faults["activate fails"] = "-17"
    with pytest.raises(errors.Conflict, match="PARTITION_ID_IN_USE"):
        bench.connect().activate(4)


def test_tcp_is_an_address_too(bench: Bench) -> None:
    with library.running("tcp:127.0.0.1:0") as manager:
        assert len(bench.connect(f"127.0.0.1:{manager.port}").list_partitions()) == 15


def test_vsock_is_an_address_too(bench: Bench) -> None:
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.bind((socket.VMADDR_CID_ANY, 0))
            probe.listen(1)
            with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as other:
                other.settimeout(1)
                other.connect((1, probe.getsockname()[1]))
    except OSError as error:
        pytest.skip(f"this machine's vsock has no loopback: {error}")
    with library.running("vsock:1:0") as manager:
        assert len(bench.connect(f"1:{manager.port}").list_partitions()) == 15


def test_a_library_before_vsock_is_asked_again_in_its_own_version(bench: Bench, tmp_path: Path) -> None:
    bench.start()
    old = library.compile_library(tmp_path / "old", "ONLY_V1")
    made = bench.connect(stub=old)
    assert (made.api_version, len(made.list_partitions())) == (1, 15)
    with pytest.raises(errors.ProtocolError, match="without vsock"):
        bench.connect("3:6666", stub=old)


def test_a_manager_of_neither_version_is_named_as_such(bench: Bench) -> None:
    manager = bench.start()
    manager.faults["versions"] = str(V2)
    assert bench.connect().api_version == 1
    manager.faults["versions"] = " ".join(str(word) for word in PUBLISHED.values())
    with pytest.raises(errors.ProtocolError, match="another version") as caught:
        bench.connect()
    assert caught.value.reason == "FabricVersionMismatch"


def test_no_library_half_of_one_and_no_library_at_all(bench: Bench, tmp_path: Path) -> None:
    half = library.compile_library(tmp_path / "half", "HALF")
    for path, reason in ((half, "FabricLibraryIncomplete"), (tmp_path / "none", "FabricLibraryMissing")):
        with pytest.raises(errors.Unavailable) as caught:
            bench.connect("/nowhere", stub=path)
        assert caught.value.reason == reason
    with pytest.raises(errors.Unavailable, match="cannot be loaded"):
        nvfm.NVFM("a\0b", address.parse("/x"), timeout_s=1)


def test_no_manager_is_a_connection_that_is_not_valid(bench: Bench) -> None:
    with pytest.raises(errors.Unavailable, match="cannot be reached") as caught:
        bench.connect()
    assert caught.value.reason == "FabricConnectionNotValid"


@pytest.mark.parametrize(
    ("fault", "value", "said"),
    [
        ("count", "65", "65 partitions"),
        ("count", "4294967295", "4294967295 partitions"),
        ("gpus", "17", "17 GPUs in partition 0"),
        ("gpus", "0", "partition 0 with no GPU"),
        ("twice", "", "partition 0 twice"),
        ("same gpu", "", "partition 63 with one GPU twice"),
        ("elsewhere", "17", "GPU 17 in partition 63"),
        ("elsewhere", "0", "GPU 0 in partition 63"),
        ("also active", "0 1", "GPU 1 in the active partitions 0 and 1"),
    ],
)
def test_a_list_that_contradicts_itself_is_refused_whole(bench: Bench, fault: str, value: str, said: str) -> None:
    bench.start().faults[fault] = value
    with pytest.raises(errors.ProtocolError, match=said) as caught:
        bench.connect().list_partitions()
    assert caught.value.reason == "FabricListInvalid"


def test_texts_without_an_end_end_with_their_field(bench: Bench) -> None:
    bench.start().faults["endless"] = ""
    gpu = bench.connect().list_partitions()[0].gpus[0]
    assert (gpu.uuid, gpu.pci, gpu.links) == ("x" * 80, "x" * 32, 18)


def test_failed_links_are_listed_with_their_ports(bench: Bench) -> None:
    manager = bench.start()
    made = bench.connect()
    assert (made.list_failed(), made.list_unsupported()) == ((), ())
    manager.faults["links"] = ""
    gpu, switch = made.list_failed()
    assert (gpu.is_switch, gpu.pci, gpu.ports, switch.is_switch) == (False, "00000000:0f:00.0", (3, 7), True)
    assert [(one.id, one.modules) for one in made.list_unsupported()] == [(1, (1, 3))]


def test_a_manager_that_was_started_again_wants_the_list_first(bench: Bench) -> None:
    manager = bench.start(is_restarted=True, abort_s=30)
    made = bench.connect()
    with pytest.raises(errors.Unavailable, match="still starting"):
        made.activate(1)
    made.set_active({1, 14})
    assert [one.id for one in made.list_partitions() if one.is_active] == [1, 14]
    made.set_active(())
    assert manager.journal == ["set [1, 14]", "set []"]
    with pytest.raises(errors.Invalid):
        made.set_active(range(65))


def test_a_manager_that_nobody_tells_ends_itself(bench: Bench) -> None:
    manager = bench.start(is_restarted=True, abort_s=0.05)
    made = bench.connect()
    while not manager.has_aborted:
        time.sleep(0.005)
    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        made.list_partitions()


def test_a_library_that_ends_its_process_ends_no_other(bench: Bench) -> None:
    bench.start().faults["crash"] = ""
    code = (
        "import sys; from fairlead.silicon.fabric import address, nvfm; "
        "nvfm.NVFM(sys.argv[1], address.parse(sys.argv[2]), timeout_s=1)"
    )
    done = subprocess.run([sys.executable, "-c", code, bench.stub, bench.socket], check=False, capture_output=True)
    assert done.returncode == -signal.SIGSEGV
