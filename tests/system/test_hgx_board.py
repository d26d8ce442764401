"""The board that the virtual machine of an HGX node is shown: its protocol, registers, resets and faults, without QEMU.

A client of the protocol, written apart from the server, plays QEMU.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hgx import configspace, layout, server
from hgx.function import Fault, Function, Reset

CONFIG = 7
COMMAND, POWER, FLR_BYTE, LINK = 0x04, 0x44, 0x69, 0x72
SCRUB_FLAG = 0x100B20
ONES = b"\xff\xff\xff\xff"


class Clock:
    """Time as a test sets it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Client:
    """Speaks vfio-user as QEMU does."""

    def __init__(self, path: Path, *, greet: bool = True) -> None:
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.settimeout(5)
        self.peer.connect(str(path))
        if greet:
            offer = {"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1 << 20, "write_multiple": True}}
            self.ask(1, struct.pack("<HH", 0, 1) + json.dumps(offer).encode() + b"\0")
            self.ask(13)

    def send(self, command: int, body: bytes = b"", *, flags: int = 0, size: int | None = None) -> None:
        self.peer.sendall(struct.pack("<HHIII", 7, command, 16 + len(body) if size is None else size, flags, 0) + body)

    def reply(self) -> tuple[int, int, bytes]:
        """Return flags, error number and body."""
        head = self._take(16)
        _, _, size, flags, number = struct.unpack("<HHIII", head)
        return flags, number, self._take(size - 16)

    def ask(self, command: int, body: bytes = b"") -> bytes:
        self.send(command, body)
        flags, number, answer = self.reply()
        assert (flags, number) == (1, 0), (command, errno.errorcode.get(number))
        return answer

    def refusal(self, command: int, body: bytes = b"") -> int:
        self.send(command, body)
        flags, number, answer = self.reply()
        assert (flags, answer) == (0x21, b"")
        return number

    def read(self, region: int, offset: int, size: int) -> bytes:
        return self.ask(9, struct.pack("<QII", offset, region, size))[16:]

    def write(self, region: int, offset: int, data: bytes) -> None:
        self.ask(10, struct.pack("<QII", offset, region, len(data)) + data)

    def word(self, region: int, offset: int) -> int:
        return int.from_bytes(self.read(region, offset, 4), "little")

    def enable(self) -> None:
        self.write(CONFIG, COMMAND, b"\x02\x00")

    def flr(self) -> None:
        control = self.read(CONFIG, FLR_BYTE - 1, 2)
        self.write(CONFIG, FLR_BYTE - 1, bytes([control[0], control[1] | 0x80]))

    def is_ended(self) -> bool:
        try:
            return self.peer.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.peer.close()

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.peer.recv(size - len(data))
            assert part, "the server ended the connection"
            data += part
        return data


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(tmp_path: Path, clock: Clock) -> Iterator[server.Board]:
    with server.Board(layout.HGX_H100, tmp_path, clock=clock) as one:
        yield one


@pytest.fixture
def gpu(board: server.Board) -> Function:
    return board["gpu0"]


@pytest.fixture
def client(board: server.Board) -> Iterator[Client]:
    """Connected to the first GPU, whose memory space is enabled."""
    one = Client(board.path("gpu0"))
    one.enable()
    yield one
    one.close()


def test_version_names_only_capabilities_that_were_offered(board: server.Board) -> None:
    client = Client(board.path("gpu0"), greet=False)
    answer = client.ask(1, struct.pack("<HH", 0, 0))
    assert struct.unpack_from("<HH", answer) == (0, 0)
    assert json.loads(answer[4:].rstrip(b"\0")) == {
        "capabilities": {"max_msg_fds": 16, "max_data_xfer_size": 1 << 20},
    }
    client.close()


def test_a_function_is_a_pci_device_with_its_regions_and_no_interrupts(client: Client) -> None:
    assert struct.unpack("<IIII", client.ask(4, bytes(16))) == (16, 3, 9, 5)
    sizes = [
        struct.unpack("<IIIIQQ", client.ask(5, struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0)))[4] for index in range(9)
    ]
    assert sizes == [16 << 20, 0, 64 << 20, 0, 32 << 20, 0, 0, 4096, 0]
    counts = [struct.unpack("<IIII", client.ask(7, struct.pack("<IIII", 16, 0, index, 0)))[3] for index in range(5)]
    assert counts == [0] * 5


@pytest.mark.parametrize(
    "table", [*layout.HGX_H100.functions(), *layout.HGX_B200.functions()], ids=lambda one: one.name
)
def test_configuration_space_has_the_tables_identity(table: layout.FunctionTable) -> None:
    space = configspace.initial(table)
    vendor, device = struct.unpack_from("<HH", space, 0)
    revision_and_class, subvendor, subsystem = (
        *struct.unpack_from("<I", space, 8),
        *struct.unpack_from("<HH", space, 0x2C),
    )
    assert (vendor, device, subvendor, subsystem) == (table.vendor, table.device, table.vendor, table.subsystem)
    assert revision_and_class == table.class_code << 8 | table.revision


def test_capabilities_are_a_list_that_ends(client: Client) -> None:
    found: list[int] = []
    at = client.read(CONFIG, 0x34, 1)[0]
    while at and len(found) < 48:
        kind, following = client.read(CONFIG, at, 2)
        found.append(kind)
        at = following
    assert found == [1, 0x10]
    extended: list[int] = []
    at = 0x100
    while at and len(extended) < 48:
        head = client.word(CONFIG, at)
        extended.append(head & 0xFFFF)
        at = head >> 20
    assert extended == [1, 3]


def test_module_numbers_are_those_of_the_published_layout(board: server.Board) -> None:
    seen = []
    for gpu in board.gpus():
        client = Client(board.path(gpu.table.name))
        client.enable()
        pins = [client.word(0, 0x21200 + 4 * pin) >> 14 & 1 for pin in (0x9, 0x11, 0x12)]
        seen.append((pins[0] | pins[1] << 1 | pins[2] << 2 ^ 4) + 1)  # this subsystem has the third pin inverted
        client.close()
    assert seen == [5, 7, 6, 8, 1, 3, 2, 4]
    assert [board.gpu(module).table.name for module in (1, 5)] == ["gpu4", "gpu0"]


def test_bars_answer_only_with_memory_space_enabled_and_awake(client: Client) -> None:
    assert client.word(0, 0) == 0x180000A1
    client.write(CONFIG, POWER, b"\x03\x00")
    assert client.read(0, 0, 4) == ONES
    client.write(CONFIG, POWER, b"\x00\x00")
    client.write(CONFIG, COMMAND, b"\x00\x00")
    assert client.read(0, 0, 4) == ONES
    assert client.word(CONFIG, 0) == 0x233010DE


def test_identity_cannot_be_written(client: Client) -> None:
    client.write(CONFIG, 0, ONES)
    client.write(0, 0, ONES)
    client.write(0, SCRUB_FLAG, bytes(4))
    assert (client.word(CONFIG, 0), client.word(0, 0), client.word(0, SCRUB_FLAG)) == (0x233010DE, 0x180000A1, 1)


def test_registers_keep_what_is_written_until_a_reset(client: Client) -> None:
    client.write(0, 0x1000, b"\x01\x02\x03\x04")
    assert client.read(0, 0xFFE, 8) == b"\0\0\x01\x02\x03\x04\0\0"
    client.flr()
    client.enable()
    assert client.word(0, 0x1000) == 0


def test_a_starting_machine_an_flr_and_a_bus_reset_are_counted_apart(client: Client, gpu: Function) -> None:
    client.flr()
    client.ask(13)
    client.ask(13)
    assert [gpu.resets(how) for how in Reset] == [1, 1, 2, 0]
    assert [event.what for event in gpu.events()] == ["reset power", "reset flr", "reset bus", "reset bus"]


def test_an_flr_clears_the_command_register_and_not_the_identity(client: Client) -> None:
    client.flr()
    assert (client.word(CONFIG, COMMAND) & 0xFFFF, client.word(CONFIG, 0)) == (0, 0x233010DE)


def test_memory_keeps_what_a_tenant_wrote_across_pages(client: Client, gpu: Function) -> None:
    client.write(layout.MEMORY_BAR, 4094, b"left")
    assert client.read(layout.MEMORY_BAR, 4092, 8) == b"\0\0left\0\0"
    assert gpu.memory(4094, 4) == b"left"
    assert not gpu.is_clean()


@pytest.mark.parametrize("how", [Reset.FLR, Reset.BUS])
def test_a_reset_overwrites_the_memory_and_the_flag_says_when(
    how: Reset, client: Client, gpu: Function, clock: Clock
) -> None:
    client.write(layout.MEMORY_BAR, 0, b"left")
    gpu.reset(how)
    client.enable()
    assert client.word(0, SCRUB_FLAG) == 0
    assert client.read(layout.MEMORY_BAR, 0, 4) == b"left"  # who does not wait sees it
    clock.now_s += 0.5
    assert client.word(0, SCRUB_FLAG) == 1
    assert gpu.is_clean()


def test_a_machine_that_starts_finds_the_memory_empty(client: Client, board: server.Board, gpu: Function) -> None:
    client.write(layout.MEMORY_BAR, 0, b"left")
    client.close()
    Client(board.path("gpu0")).close()
    assert gpu.is_clean()


def test_off_the_bus_all_is_ones_until_mended(client: Client, gpu: Function) -> None:
    gpu.fail(Fault.OFF_THE_BUS)
    client.flr()
    assert (client.read(CONFIG, 0, 4), client.read(0, 0, 4), gpu.resets(Reset.FLR)) == (ONES, ONES, 0)
    client.ask(13)
    assert gpu.resets(Reset.BUS) == 0
    gpu.mend()
    assert client.word(CONFIG, 0) == 0x233010DE


def test_a_memory_that_is_never_scrubbed_keeps_its_bytes_and_flag(client: Client, gpu: Function, clock: Clock) -> None:
    client.write(layout.MEMORY_BAR, 0, b"left")
    gpu.fail(Fault.NEVER_SCRUBBED)
    client.flr()
    client.enable()
    clock.now_s += 3600
    assert (client.word(0, SCRUB_FLAG), client.read(layout.MEMORY_BAR, 0, 4)) == (0, b"left")
    gpu.mend()
    assert client.word(0, SCRUB_FLAG) == 0
    clock.now_s += 0.5
    assert gpu.is_clean()


def test_a_scrub_that_is_under_way_can_stop(client: Client, gpu: Function, clock: Clock) -> None:
    client.write(layout.MEMORY_BAR, 0, b"left")
    client.flr()
    gpu.fail(Fault.NEVER_SCRUBBED)
    clock.now_s += 3600
    assert not gpu.is_clean()


def test_an_flr_without_effect_is_counted_as_such(client: Client, gpu: Function, clock: Clock) -> None:
    client.write(layout.MEMORY_BAR, 0, b"left")
    gpu.fail(Fault.FLR_IGNORED)
    client.flr()
    clock.now_s += 3600
    assert (gpu.resets(Reset.FLR), gpu.resets(Reset.FLR_IGNORED)) == (0, 1)
    assert client.read(layout.MEMORY_BAR, 0, 4) == b"left"


def test_memory_that_only_a_bus_reset_overwrites(client: Client, gpu: Function, clock: Clock) -> None:
    client.write(layout.MEMORY_BAR, 0, b"left")
    gpu.fail(Fault.FLR_KEEPS_MEMORY)
    client.flr()
    clock.now_s += 3600
    assert gpu.memory(0, 4) == b"left"
    client.ask(13)
    clock.now_s += 0.5
    assert gpu.is_clean()


def test_a_slow_flr_answers_with_ones_for_its_time(client: Client, gpu: Function, clock: Clock) -> None:
    gpu.slow_down(3.0)
    client.flr()
    clock.now_s += 2.9
    assert client.read(CONFIG, COMMAND, 4) == ONES
    clock.now_s += 0.1
    assert client.read(CONFIG, COMMAND, 4) != ONES


def test_two_gpus_can_tell_one_serial_number(board: server.Board) -> None:
    first, second = board.gpus()[:2]
    serial = first.table.serial
    assert serial is not None
    second.set_serial(serial)
    client = Client(board.path("gpu1"))  # whose start resets it, which must not undo the command
    assert client.read(CONFIG, configspace.SERIAL_NUMBER, 8) == serial.to_bytes(8, "little")
    second.mend()
    assert client.read(CONFIG, configspace.SERIAL_NUMBER, 8) != serial.to_bytes(8, "little")
    client.close()


def test_a_link_can_become_narrow_and_wide_again(client: Client, gpu: Function) -> None:
    gpu.set_link(5, 8)
    assert client.read(CONFIG, LINK, 2) == b"\x85\x00"
    gpu.mend()
    assert client.read(CONFIG, LINK, 2) == b"\x05\x01"


def vital_data(client: Client, size: int) -> bytes:
    data = b""
    for offset in range(0, size, 4):
        client.write(CONFIG, configspace.VPD_ADDRESS, offset.to_bytes(2, "little"))
        assert client.read(CONFIG, configspace.VPD_ADDRESS, 2) == (offset | 0x8000).to_bytes(2, "little")
        data += client.read(CONFIG, configspace.VPD_DATA, 4)
    return data


def test_switch_bridges_tell_what_they_are_in_vital_product_data(tmp_path: Path) -> None:
    with server.Board(layout.HGX_B200, tmp_path) as board:
        client = Client(board.path("bridge2"))
        data = vital_data(client, 128).rstrip(b"\0")
        assert b"SW_MNG" in data
        assert b"MT2433X00002" in data
        assert sum(data[: data.index(b"RV") + 4]) & 0xFF == 0  # its checksum
        assert data[-1] == 0x78
        board["bridge2"].set_vpd(b"\x82\xff\xff")
        assert vital_data(client, 8) == b"\x82\xff\xff\0\0\0\0\0"
        client.close()


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (struct.pack("<QII", 0, 8, 4), errno.EINVAL),
        (struct.pack("<QII", 4095, CONFIG, 2), errno.EINVAL),
        (struct.pack("<QII", (1 << 64) - 4, 0, 4), errno.EINVAL),
        (struct.pack("<QII", 0, 2, (1 << 20) + 1), errno.EINVAL),
        (struct.pack("<QII", 0, 0xFFFFFFFF, 4), errno.EINVAL),
    ],
)
def test_a_read_outside_a_region_is_refused_and_the_next_is_answered(body: bytes, number: int, client: Client) -> None:
    assert client.refusal(9, body) == number
    assert client.word(0, 0) == 0x180000A1


def test_an_unknown_command_is_refused(client: Client) -> None:
    assert client.refusal(15, bytes(24)) == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (struct.pack("<HHIII", 1, 9, 15, 0, 0), "a message of 15 bytes"),
        (struct.pack("<HHIII", 1, 9, 0xFFFFFFFF, 0, 0), "a message of 4294967295 bytes"),
        (struct.pack("<HHIII", 1, 9, 16, 1, 0), "no command: type 1"),
        (struct.pack("<HHIII", 1, 9, 20, 0, 0) + b"abcd", "unpack_from requires"),
        (struct.pack("<HHIII", 1, 10, 36, 0, 0) + struct.pack("<QII", 0, 2, 8) + b"abcd", "a write of 8 bytes with 4"),
        (struct.pack("<HHIII", 1, 1, 20, 0, 0) + struct.pack("<HH", 1, 0), "version 1.0"),
        (b"GET / HTTP/1.1\r\nHost: board\r\n\r\n", "a message of"),
    ],
)
def test_a_broken_message_ends_its_connection_and_no_other(
    message: bytes, why: str, board: server.Board, client: Client
) -> None:
    other = Client(board.path("gpu1"))
    other.peer.sendall(message)
    assert other.is_ended()
    assert why in board["gpu1"].events()[-1].what
    assert client.word(0, 0) == 0x180000A1
    again = Client(board.path("gpu1"))
    assert again.word(CONFIG, 0) == 0x233010DE
    other.close()
    again.close()


def test_nothing_is_answered_before_the_version(board: server.Board) -> None:
    client = Client(board.path("gpu0"), greet=False)
    client.send(9, struct.pack("<QII", 0, CONFIG, 4))
    assert client.is_ended()
    client.close()


def test_a_message_may_come_in_pieces_and_several_in_one(client: Client) -> None:
    message = struct.pack("<HHIII", 1, 9, 32, 0, 0) + struct.pack("<QII", 0, CONFIG, 4)
    for byte in message:
        client.peer.sendall(bytes([byte]))
    assert client.reply()[2][16:] == b"\xde\x10\x30\x23"
    client.peer.sendall(message * 3)
    assert [client.reply()[2][16:] for _ in range(3)] == [b"\xde\x10\x30\x23"] * 3


def test_a_command_may_ask_for_no_reply(client: Client) -> None:
    client.send(10, struct.pack("<QII", 0x1000, 0, 4) + b"abcd", flags=0x10)
    assert client.read(0, 0x1000, 4) == b"abcd"


def test_a_second_client_of_a_function_is_sent_away_and_the_next_machine_is_not(
    board: server.Board, client: Client, gpu: Function
) -> None:
    second = Client(board.path("gpu0"), greet=False)
    assert second.is_ended()
    second.close()
    assert client.word(0, 0) == 0x180000A1
    client.close()
    third = Client(board.path("gpu0"))
    assert gpu.resets(Reset.POWER) == 2
    third.close()


def test_windows_for_dma_are_known_and_their_descriptors_closed(board: server.Board, client: Client) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - descriptors of this process
    shown = os.memfd_create("memory")
    body = struct.pack("<IIQQQ", 32, 3, 0, 0x100000, 0x200000)
    socket.send_fds(client.peer, [struct.pack("<HHIII", 1, 2, 48, 0, 0) + body], [shown])
    assert client.reply()[:2] == (1, 0)
    os.close(shown)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert board.windows("gpu0") == {0x100000: 0x200000}
    assert client.refusal(2, body) == errno.EEXIST
    assert client.refusal(3, struct.pack("<IIQQ", 24, 0, 0x100000, 0x1000)) == errno.ENOENT
    client.ask(3, struct.pack("<IIQQ", 24, 0, 0x100000, 0x200000))
    assert board.windows("gpu0") == {}


def _map(client: Client, address: int, size: int, offset: int, memory: int) -> None:
    body = struct.pack("<IIQQQ", 32, 3, offset, address, size)
    socket.send_fds(client.peer, [struct.pack("<HHIII", 1, 2, 48, 0, 0) + body], [memory])
    assert client.reply()[:2] == (1, 0)


def test_one_message_takes_all_windows_away_that_lie_within_its_range(board: server.Board, client: Client) -> None:
    memory = os.memfd_create("memory")
    for address in (0, 0x1000, 0x3000):
        _map(client, address, 0x1000, address, memory)
    assert client.refusal(3, struct.pack("<IIQQ", 24, 0, 0x800, 0x4000)) == errno.ENOENT, "it would cut the first"
    client.ask(3, struct.pack("<IIQQ", 24, 0, 0, 0x2000))
    assert board.windows("gpu0") == {0x3000: 0x1000}
    client.ask(3, struct.pack("<IIQQ", 24, 0, 0, 1 << 32))
    assert board.windows("gpu0") == {}
    assert client.refusal(3, struct.pack("<IIQQ", 24, 0, 0, 1 << 32)) == errno.ENOENT
    os.close(memory)


def test_windows_with_addresses_of_their_own_are_told_from_the_machines(board: server.Board, client: Client) -> None:
    memory, firmware = os.memfd_create("memory"), os.memfd_create("more memory")
    others = [Client(board.path(name)) for name in ("gpu1", "gpu2")]
    for one in (client, *others):
        _map(one, 0, 0x100000, 0, memory)
        _map(one, 0x100000, 0x100000, 0, firmware)
    assert [board.translated(name) for name in ("gpu0", "gpu1", "gpu7")] == [{}, {}, {}]
    client.ask(3, struct.pack("<IIQQ", 24, 0, 0, 1 << 32))
    for address in range(0, 0x8000, 0x1000):  # many windows of one function outvote nobody
        _map(client, address, 0x1000, 0x40000 + address, memory)
    assert board.translated("gpu0") == dict.fromkeys(range(0, 0x8000, 0x1000), 0x1000)
    assert [board.translated(name) for name in ("gpu1", "gpu7")] == [{}, {}]
    for one in others:
        one.close()
    os.close(memory)
    os.close(firmware)


def test_memory_outlives_a_start_of_the_machine_where_a_test_says_so(board: server.Board) -> None:
    gpu = board["gpu0"]
    for keeps in (False, True):
        if keeps:
            gpu.fail(Fault.POWER_KEEPS_MEMORY)
        gpu.leave(b"tenant")
        gpu.reset(Reset.POWER)
        assert gpu.is_clean() is not keeps


def test_events_of_a_board_are_in_order(board: server.Board, clock: Clock) -> None:
    for at_s, name in ((1, "gpu3"), (2, "nvswitch1"), (3, "gpu0")):
        clock.now_s = at_s
        board[name].reset(Reset.BUS)
    assert [(event.at_s, event.function) for event in board.events()] == [(1, "gpu3"), (2, "nvswitch1"), (3, "gpu0")]


def test_every_slot_of_switches_is_one_and_each_gpu_has_its_own() -> None:
    slots = [[table.name for table in slot] for slot in layout.HGX_H100.slots]
    assert slots[8:] == [["nvswitch0", "memory-controller", "nvswitch1", "nvswitch2", "nvswitch3"]]
    assert [len(slot) for slot in slots[:8]] == [1] * 8
    assert len(layout.HGX_B200.slots) == 12


def test_a_board_leaves_no_thread_and_no_socket(tmp_path: Path) -> None:
    with server.Board(layout.HGX_B200, tmp_path):
        assert len(list(tmp_path.iterdir())) == 12
    assert list(tmp_path.iterdir()) == []
    with server.Board(layout.HGX_B200, tmp_path):  # the same folder again
        pass
