"""The machine on which passthrough is shown: what its kernel says of an HGX board, what resets and faults do there, who
is kept out by whom, and tenants' machines within it. It shows itself; Fairlead's parts are shown on it elsewhere.

Three boots: a kernel of ours with iommufd under either board, and Debian's, which has VFIO groups alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hgx import emulator, image, launcher, layout, tenant
from hgx.function import Fault, Function, Reset
from hgx.node import Node, NodeError
from hgx.shown import hgx_node, power_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRUB_FLAG = 0x100B20
MEMORY = layout.MEMORY_BAR
LEFT = "left behind!"
WORD = 0xFEEDFACE


@pytest.fixture(scope="module")
def h100() -> Iterator[Node]:
    with hgx_node(layout.HGX_H100, packages=image.AGENT, programs=launcher.PROGRAMS, tenants=2) as node:
        yield node


@pytest.fixture(scope="module")
def b200() -> Iterator[Node]:
    with hgx_node(layout.HGX_B200) as node:
        yield node


@pytest.fixture(scope="module")
def debian() -> Iterator[Node]:
    with hgx_node(layout.HGX_H100, kernel=emulator.debian_kernel(), tenants=1) as node:
        yield node


@pytest.fixture(params=["h100", "b200"])
def node(request: pytest.FixtureRequest) -> Node:
    found: Node = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take away each fault after a test, also one that failed."""
    yield
    for value in request.node.funcargs.values():
        if isinstance(value, Node):
            for function in value.board:
                function.mend()


def dirty(node: Node, name: str) -> str:
    """Leave bytes in a GPU's memory as a tenant does; returns its address."""
    address = node.address[name]
    wait_until_scrubbed(node.board[name])  # after an earlier test's reset
    node.call("facts", "write", address, 0x2000, LEFT, MEMORY)
    assert node.board[name].memory(0x2000, len(LEFT)) == LEFT.encode()
    return address


def wait_until_scrubbed(gpu: Function) -> None:
    until = time.monotonic() + 10
    while gpu.is_scrubbing():
        assert time.monotonic() < until
        time.sleep(0.05)


# What sysfs says


def test_sysfs_has_what_the_boards_table_says(node: Node) -> None:
    seen = node.call("facts", "functions")
    for table in node.board.layout.functions():
        found = seen[node.address[table.name]]
        identity = [int(found[name], 16) for name in ("vendor", "device", "subsystem_device", "class")]
        assert identity == [table.vendor, table.device, table.subsystem, table.class_code], table.name
        assert (found["current_link_speed"], found["current_link_width"]) == ("32.0 GT/s PCIe", "16")
        assert found["driver"] == ""
    others = {address for address, found in seen.items() if found["vendor"] not in ("0x8086", "0x1af4", "0x1b36")}
    assert others == set(node.address.values())


def test_each_slot_is_an_iommu_group_of_its_own_behind_a_bridge_of_its_own(node: Node) -> None:
    groups = {frozenset(found) for found in node.call("facts", "groups").values()}
    seen = node.call("facts", "functions")
    bridges = set()
    for slot in node.board.layout.slots:
        addresses = frozenset(node.address[table.name] for table in slot)
        assert addresses in groups
        (bridge,) = {seen[address]["bridge"] for address in addresses}
        bridges.add(bridge)
    assert len(bridges) == len(node.board.layout.slots)


def test_gpus_are_near_two_numa_nodes(node: Node) -> None:
    seen = node.call("facts", "functions")
    nodes = [seen[node.address[table.name]]["numa_node"] for table in node.board.layout.gpus()]
    assert nodes == ["0"] * 4 + ["1"] * 4
    assert node.output("cat /sys/devices/system/node/node[01]/cpulist").split() == ["0", "1"]


def test_a_function_alone_in_its_slot_can_be_reset_by_bus(h100: Node) -> None:
    seen = h100.call("facts", "functions")
    assert seen[h100.address["gpu0"]]["resets"] == ["flr", "bus"]
    assert seen[h100.address["nvswitch1"]]["resets"] == ["flr"]


def test_gpus_tell_their_serial_numbers_without_a_driver(node: Node) -> None:
    for table in node.board.layout.gpus():
        assert node.call("facts", "serial_number", node.address[table.name]) == table.serial


def test_module_numbers_are_read_from_bar_0_and_do_not_follow_pci_order(h100: Node) -> None:
    seen = []
    for gpu in sorted(h100.address[table.name] for table in h100.board.layout.gpus()):
        pins = [
            h100.call("facts", "word", gpu, register) >> layout.MODULE_BIT & 1 for register in layout.MODULE_REGISTERS
        ]
        seen.append((pins[0] + 2 * pins[1] + 4 * pins[2] ^ 4) + 1)
    assert seen == [5, 7, 6, 8, 1, 3, 2, 4]


def test_switch_bridges_are_told_by_their_vital_product_data(b200: Node) -> None:
    for number in range(4):
        data = b200.call("facts", "vital_data", b200.address[f"bridge{number}"])
        assert "SW_MNG" in data
        assert f"MT2433X0{number:04d}" in data


def test_every_function_was_reset_once_by_the_start_of_its_machine(debian: Node) -> None:
    assert {function.resets(Reset.POWER) for function in debian.board} == {1}


# Resets


@pytest.mark.parametrize(("method", "how"), [("flr", Reset.FLR), ("bus", Reset.BUS)])
def test_a_reset_by_sysfs_is_counted_and_the_memory_scrubbed(method: str, how: Reset, h100: Node) -> None:
    address, gpu = dirty(h100, "gpu1"), h100.board["gpu1"]
    before = {each: gpu.resets(each) for each in Reset}
    assert h100.call("facts", "reset", address, method) == ""
    assert {each: gpu.resets(each) - before[each] for each in Reset if gpu.resets(each) != before[each]} == {how: 1}
    assert h100.call("facts", "wait_for_word", address, SCRUB_FLAG, 1, 10) >= 0
    assert gpu.is_clean()


def test_a_bridges_reset_reaches_every_function_of_its_slot_and_no_other(h100: Node) -> None:
    bridge = h100.call("facts", "functions")[h100.address["nvswitch0"]]["bridge"]
    before = {function.table.name: function.resets(Reset.BUS) for function in h100.board}
    h100.output(f"echo 1 >/sys/bus/pci/devices/{bridge}/reset_subordinate")
    after = {function.table.name: function.resets(Reset.BUS) for function in h100.board}
    slot = {table.name for table in h100.board.layout.slots[-1]}
    assert {name: after[name] - before[name] for name in after} == {name: int(name in slot) for name in after}


def test_a_function_that_was_removed_is_found_again(h100: Node) -> None:
    address = h100.address["gpu6"]
    h100.output(f"echo 1 >/sys/bus/pci/devices/{address}/remove")
    assert address not in h100.call("facts", "functions")
    h100.output("echo 1 >/sys/bus/pci/rescan")
    assert h100.call("facts", "functions")[address]["device"] == "0x2330"


def test_a_function_that_is_taken_out_is_gone_and_put_in_again_is_back(b200: Node) -> None:
    address, gpu = b200.address["gpu7"], b200.board["gpu7"]
    before = gpu.resets(Reset.POWER)
    b200.unplug("gpu7")
    assert b200.call("facts", "wait_for", address, False, 20) >= 0
    b200.plug("gpu7")
    assert b200.call("facts", "wait_for", address, True, 20) >= 0
    assert b200.call("facts", "serial_number", address) == gpu.table.serial
    assert gpu.resets(Reset.POWER) == before + 1


def test_errors_that_a_function_reports_are_counted_by_the_kernel(b200: Node) -> None:
    address = b200.address["gpu2"]
    before = b200.call("facts", "error_counts", address)
    b200.call("facts", "report_error", address, 0x1, 0)
    b200.call("facts", "report_error", address, 0, 0x4000)
    until = time.monotonic() + 20
    wanted = {**before, "correctable": before["correctable"] + 1, "nonfatal": before["nonfatal"] + 1}
    while (found := b200.call("facts", "error_counts", address)) != wanted:
        assert time.monotonic() < until, found


def test_the_kernel_has_what_virtual_machines_and_their_agents_talk_over(h100: Node) -> None:
    assert h100.call("facts", "vsock_loop", 4050) == "word"
    assert h100.sh("ls /dev/vhost-vsock /dev/vhost-net /dev/net/tun /dev/fuse").code == 0


# Who keeps whom out


def test_an_open_group_and_a_bound_device_keep_each_other_out(h100: Node) -> None:
    """The facts that the third gate stands on, of this kernel. Source: Linux, drivers/vfio/group.c, device_cdev.c."""
    address = h100.address["gpu2"]
    assert h100.call("facts", "bind", address) == "vfio-pci"
    try:
        assert h100.call("facts", "word", address, 0) == 0x180000A1
        assert h100.call("facts", "holder", address) == {
            "first": [""],
            "group held": ["EBUSY", "EBUSY"],
            "device bound": ["", "EBUSY", "EINVAL"],
            "closed": [""],
        }
    finally:
        h100.call("facts", "unbind", address)


def test_an_open_group_without_a_container_resets_nothing(h100: Node) -> None:
    address, gpu = dirty(h100, "gpu2"), h100.board["gpu2"]
    h100.call("facts", "bind", address)
    try:
        before = gpu.resets(Reset.FLR)
        assert h100.call("facts", "open_twice", h100.call("facts", "nodes", address)["group"]) == ["", "EBUSY"]
        assert gpu.resets(Reset.FLR) == before
    finally:
        h100.call("facts", "unbind", address)


# Faults


def test_off_the_bus_all_is_ones(h100: Node) -> None:
    address, gpu = h100.address["gpu3"], h100.board["gpu3"]
    assert h100.call("facts", "word", address, 0) == 0x180000A1
    gpu.fail(Fault.OFF_THE_BUS)
    assert h100.call("facts", "word", address, 0) == 0xFFFFFFFF
    assert h100.output(f"head -c 4 /sys/bus/pci/devices/{address}/config | od -A n -t x4").split() == ["ffffffff"]
    gpu.mend()
    assert h100.call("facts", "word", address, 0) == 0x180000A1


def test_a_scrub_that_never_ends_leaves_the_bytes(h100: Node) -> None:
    address, gpu = dirty(h100, "gpu3"), h100.board["gpu3"]
    gpu.fail(Fault.NEVER_SCRUBBED)
    assert h100.call("facts", "reset", address, "bus") == ""
    assert h100.call("facts", "wait_for_word", address, SCRUB_FLAG, 1, 1.5) == -1
    assert h100.call("facts", "text", address, 0x2000, len(LEFT), MEMORY) == LEFT


def test_an_flr_without_effect_looks_like_one_that_worked(h100: Node) -> None:
    address, gpu = dirty(h100, "gpu3"), h100.board["gpu3"]
    before = (gpu.resets(Reset.FLR), gpu.resets(Reset.FLR_IGNORED))
    gpu.fail(Fault.FLR_IGNORED)
    assert h100.call("facts", "reset", address, "flr") == ""
    assert (gpu.resets(Reset.FLR), gpu.resets(Reset.FLR_IGNORED)) == (before[0], before[1] + 1)
    assert h100.call("facts", "wait_for_word", address, SCRUB_FLAG, 1, 10) >= 0
    assert not gpu.is_clean()


def test_memory_that_an_flr_keeps_is_scrubbed_by_a_bus_reset(h100: Node) -> None:
    address, gpu = dirty(h100, "gpu3"), h100.board["gpu3"]
    gpu.fail(Fault.FLR_KEEPS_MEMORY)
    assert h100.call("facts", "reset", address, "flr") == ""
    assert gpu.memory(0x2000, len(LEFT)) == LEFT.encode()
    assert h100.call("facts", "reset", address, "bus") == ""
    assert h100.call("facts", "wait_for_word", address, SCRUB_FLAG, 1, 10) >= 0
    assert gpu.is_clean()


def test_a_slow_flr_is_waited_for_by_the_kernel(h100: Node) -> None:
    address, gpu = h100.address["gpu3"], h100.board["gpu3"]
    gpu.slow_down(2.0)
    took = float(h100.call("facts", "reset_takes", address, "flr"))
    assert took >= 1.5
    assert h100.call("facts", "word", address, 0) == 0x180000A1


def test_two_gpus_with_one_serial_number_are_seen(h100: Node) -> None:
    serial = h100.board["gpu0"].table.serial
    assert serial is not None
    h100.board["gpu1"].set_serial(serial)
    seen = [h100.call("facts", "serial_number", h100.address[name]) for name in ("gpu0", "gpu1", "gpu2")]
    assert (seen[1], seen[2]) == (seen[0], h100.board["gpu2"].table.serial)


def test_a_link_that_became_narrow_is_seen(h100: Node) -> None:
    h100.board["gpu4"].set_link(4, 8)
    found = h100.call("facts", "functions")[h100.address["gpu4"]]
    assert (found["current_link_speed"], found["current_link_width"]) == ("16.0 GT/s PCIe", "8")


def test_vital_product_data_of_nonsense_is_read_to_its_end(b200: Node) -> None:
    b200.board["bridge3"].set_vpd(b"\x82\xff\xff" + bytes(range(256)) * 8)
    assert len(b200.call("facts", "vital_data", b200.address["bridge3"])) <= 1 << 15
    assert "SW_MNG" in b200.call("facts", "vital_data", b200.address["bridge0"])


# Tenants' machines


@pytest.fixture(scope="module")
def handed(h100: Node) -> Iterator[tuple[str, str]]:
    """Two GPUs of different halves of the board, bound: modules 5 and 1."""
    addresses = (h100.address["gpu0"], h100.address["gpu4"])
    for address in addresses:
        assert h100.call("facts", "bind", address) == "vfio-pci"
    yield addresses
    for address in addresses:
        h100.call("facts", "unbind", address)


@pytest.mark.parametrize("with_iommufd", [True, False], ids=["iommufd", "groups"])
def test_a_tenants_machine_sees_its_own_gpus_empty_and_what_it_leaves_is_scrubbed(
    with_iommufd: bool, h100: Node, handed: tuple[str, str]
) -> None:
    before = {function.table.name: function.resets(Reset.FLR) for function in h100.board}
    line = tenant.line(handed, with_iommufd=with_iommufd, leave=WORD)
    done = h100.sh(line, limit_s=240)
    seen = tenant.reports(done.out)
    assert [(gpu.device, gpu.module, gpu.boot0, gpu.found) for gpu in seen] == [
        ("0x2330", 5, 0x180000A1, 0),
        ("0x2330", 1, 0x180000A1, 0),
    ], (done.out, done.err)
    after = {function.table.name: function.resets(Reset.FLR) for function in h100.board}
    assert {name for name in after if after[name] != before[name]} == {"gpu0", "gpu4"}
    for name in ("gpu0", "gpu4"):
        wait_until_scrubbed(h100.board[name])
        assert h100.board[name].is_clean()


def test_while_it_runs_its_gpus_reach_its_memory_alone_and_nobody_else_gets_them(
    h100: Node, handed: tuple[str, str]
) -> None:
    group = h100.call("facts", "nodes", handed[0])["group"]
    line = tenant.line(handed[:1], with_iommufd=False, leave=WORD, is_staying=True)
    gpu = h100.board["gpu0"]
    with h100.running("stays", f"{line} 2>&1") as pid:
        h100.wait_for_log("stays", "TENANT done", limit_s=240)
        assert gpu.memory(0, 4) == WORD.to_bytes(4, "little")
        assert 0 < sum(h100.board.windows("gpu0").values()) < (tenant.MEMORY_MIB + 4) << 20
        assert h100.call("facts", "open_twice", group)[0] == "EBUSY"
        assert h100.sh(tenant.line(handed[:1], with_iommufd=True), limit_s=120).code != 0
        resets = gpu.resets(Reset.FLR)
        assert h100.kill(pid) == -9
    assert h100.call("facts", "wait_until_open", group, 20) >= 0
    assert gpu.resets(Reset.FLR) > resets


def test_two_tenants_in_containers_have_their_own_nodes_and_no_other(h100: Node, handed: tuple[str, str]) -> None:
    """At once, one by iommufd and one by groups, as two launchers run them."""
    kinds, general = ("device", "group"), ("/dev/iommu", "/dev/vfio/vfio")
    nodes = [h100.call("facts", "nodes", address) for address in handed]
    pids = {}
    for own, kind in enumerate(kinds):
        other = nodes[1 - own][kind]
        major, minor = h100.call("facts", "numbers", [other])[other]
        tries = f"ls {other}; mknod /other c {major} {minor} && cat </other; "
        line = tries + tenant.line(handed[own : own + 1], with_iommufd=kind == "device", leave=WORD + own)
        folder = launcher.bundle(h100, f"launcher{own}", line, devices=[general[own], nodes[own][kind]])
        pids[other] = h100.spawn(f"launcher{own}", launcher.run(folder))
    for own, (other, pid) in enumerate(pids.items()):
        code = h100.wait(pid, limit_s=240)
        said = h100.log(f"launcher{own}")
        assert [(gpu.module, gpu.found) for gpu in tenant.reports(said)] == [((5, 1)[own], 0)], (code, said)
        assert f"ls: {other}: No such file or directory" in said
        assert "can't open /other: Operation not permitted" in said


# Commands, power, Fairlead


def test_a_command_that_fails_or_hangs_is_told_and_the_next_is_answered(h100: Node) -> None:
    assert h100.sh("echo out; echo err >&2; exit 3") == type(h100.sh("true"))(code=3, out="out\n", err="err\n")
    assert h100.sh("echo begun; sleep 60", limit_s=1).code is None
    assert h100.output("echo next") == "next\n"


def test_a_program_of_the_tests_own_runs_there(h100: Node) -> None:
    source = "import os\ndef main(word):\n    return {word: os.uname().release}\n"
    assert h100.script(source, "kernel") == {"kernel": (emulator.built() / "version").read_text().strip()}
    with pytest.raises(NodeError, match="ZeroDivisionError"):
        h100.script("def main():\n    return 1 / 0\n")


def test_a_process_goes_on_beside_commands_until_it_is_killed(h100: Node) -> None:
    with h100.running("counts", "i=0; while :; do echo $((i += 1)); sleep 0.05; done") as pid:
        h100.wait_for_log("counts", "5\n", limit_s=20)
        assert h100.wait(pid, limit_s=0) is None
        assert h100.kill(pid) == -9
        assert h100.wait(pid, limit_s=0) == -9


def test_fairlead_describes_the_boards_gpus(h100: Node, handed: tuple[str, str]) -> None:
    done = h100.fairlead("cdi", "generate", "--mode", "vfio", "--format", "json")
    assert done.code == 0, done
    names = {device["name"] for device in json.loads(done.out)["devices"]}
    assert set(handed) <= names


def test_fairleads_agent_runs_there_until_it_is_killed(h100: Node) -> None:
    engine = {"FAIRLEAD_NODE_ENGINE": "containerd://2.2.1"}
    pid = h100.spawn_fairlead("agent", "agent", env=engine)
    said = h100.wait_for_log("agent.err", "kubelet does not say who holds devices", limit_s=120)
    assert "no CDI spec is written" in said
    assert "EngineUnknown" not in said
    assert h100.kill(pid) == -9


def test_a_power_cut_empties_the_board_and_leaves_the_disk(b200: Node) -> None:
    b200.output("echo kept >/var/lib/file && echo lost >/run/file && sync /var/lib/file")
    dirty_at = b200.address["gpu5"]
    b200.call("facts", "write", dirty_at, 0, LEFT, MEMORY)
    before: dict[str, Any] = {function.table.name: function.resets(Reset.POWER) for function in b200.board}
    b200.cut_off()
    power_on(b200)
    assert b200.output("cat /var/lib/file") == "kept\n"
    assert b200.sh("cat /run/file").code != 0
    assert b200.board["gpu5"].is_clean()
    assert {function.resets(Reset.POWER) - before[function.table.name] for function in b200.board} == {1}


# Debian's own kernel


def test_debians_kernel_has_groups_and_no_iommufd(debian: Node) -> None:
    address = debian.address["gpu0"]
    assert debian.call("facts", "bind", address) == "vfio-pci"
    found = debian.call("facts", "nodes", address)
    assert (found["group"].startswith("/dev/vfio/"), found["device"]) == (True, "")
    assert debian.sh("ls /dev/iommu /dev/vfio/devices").code != 0
    assert debian.call("facts", "open_twice", found["group"]) == ["", "EBUSY"]


def test_a_bound_function_that_nobody_uses_sleeps_and_is_read_awake(debian: Node) -> None:
    """VFIO puts it into D3hot, where its memory answers with ones; ours has no power management."""
    address = debian.address["gpu5"]
    assert debian.call("facts", "bind", address) == "vfio-pci"
    state = f"cat /sys/bus/pci/devices/{address}/power_state"
    debian.output(f"until {state} | grep -q D3hot; do sleep 0.1; done")
    assert debian.call("facts", "word", address, 0) == 0x180000A1
    debian.output(f"until {state} | grep -q D3hot; do sleep 0.1; done")


@pytest.mark.parametrize(("method", "how"), [("flr", Reset.FLR), ("bus", Reset.BUS)])
def test_debians_kernel_resets_as_ours_does(method: str, how: Reset, debian: Node) -> None:
    before = debian.board["gpu7"].resets(how)
    address = dirty(debian, "gpu7")
    assert debian.call("facts", "reset", address, method) == ""
    assert debian.board["gpu7"].resets(how) == before + 1
    assert debian.call("facts", "wait_for_word", address, SCRUB_FLAG, 1, 10) >= 0
    assert debian.board["gpu7"].is_clean()


def test_a_tenants_machine_runs_on_debians_kernel(debian: Node) -> None:
    address = debian.address["gpu6"]
    debian.call("facts", "bind", address)
    done = debian.sh(tenant.line([address], with_iommufd=False, leave=WORD), limit_s=240)
    assert [(gpu.module, gpu.found) for gpu in tenant.reports(done.out)] == [(2, 0)], done
    wait_until_scrubbed(debian.board["gpu6"])
    assert debian.board["gpu6"].is_clean()
