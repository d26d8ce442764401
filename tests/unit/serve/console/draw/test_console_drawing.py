"""The pictures of the console: what is drawn is what was recorded, and what was not is drawn as missing."""

from __future__ import annotations

import dataclasses
import urllib.parse
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.model.gpu import MIGDevice
from fairlead.plan.pod.values import environment
from fairlead.plan.trace import Record
from fairlead.serve.backend.hardware import GPUListing, GPUView, Holder
from fairlead.serve.console import render
from fairlead.serve.console.draw import amounts, charts, gpumap, headline, request, tracepicture, waterfall, words
from fairlead.serve.v1.containers import definition
from fairlead.serve.v1.containers.traceview import EntryView, StepView, TraceView
from fairlead.serve.v1.containers.view import container_view
from fairlead.wire.kubernetes import core
from tests import gpus


def _listing(*views: GPUView) -> GPUListing:
    return GPUListing(gpus=views, unreadable=(), drivers=(), is_simulated=True)


def _board(view: GPUView) -> gpumap.Board:
    ((board,),) = (node.boards for node in gpumap.nodes(_listing(view)))
    return board


def _mig(index: int, start: int, size: int) -> MIGDevice:
    return MIGDevice(
        uuid=f"MIG-{index}",  # type: ignore[arg-type]
        index=index,
        profile=f"{size}g.{size * 10}gb",
        gpu_instance=index,
        compute_instance=0,
        placement_start=start,
        placement_size=size,
        memory_bytes=size << 30,
    )


def test_mig_instances_lie_where_they_lie_and_the_rest_is_unused() -> None:
    gpu = dataclasses.replace(gpus.gpu(0), mig_enabled=True, mig_devices=(_mig(1, 4, 2), _mig(0, 0, 1)))
    holder = Holder(device="MIG-1", namespace="default", container="train")
    board = _board(GPUView(gpu=gpu, node="one", holders=(holder,)))
    found = [(cell.label, cell.size, [one.name for one in cell.occupants]) for cell in board.cells]
    assert found == [("1g.10gb", 1, []), ("unused", 3, []), ("2g.20gb", 2, ["train"]), ("unused", 2, [])]


def test_replicas_are_one_cell_each_and_many_are_counted() -> None:
    holder = Holder(device="GPU-0::1", namespace="", container="")
    view = GPUView(gpu=gpus.gpu(0), node="one", holders=(holder,), replicas=40, sharing="time-slicing")
    board = _board(view)
    assert (len(board.cells), board.more, board.is_free) == (24, 16, False)
    assert board.cells[0].occupants[0].address == "", "another tenancy's container has no page"


def _entry(stage: str, offset: float | None, *, took: float | None = None, **facts: Any) -> EntryView:
    step = StepView(
        layer="kernel",
        reason=stage,
        message="",
        at="2026-01-01T00:00:00Z",
        duration_s=took,
        facts=facts,
        is_warning=False,
        teller="",
    )
    return EntryView(
        stage=stage, layer="kernel", title=stage, record=Record.RECORDED, step=step, offset_s=offset, count=1
    )


def _gap(stage: str, record: Record) -> EntryView:
    return EntryView(stage=stage, layer="", title=stage, record=record, step=None, offset_s=None, count=1)


def _trace(*entries: EntryView) -> TraceView:
    return TraceView(entries=entries, started_at=None, is_final=False)


_GPU = {"uuid": "GPU-0", "index": 0, "pci": "0000:01:00.0"}
_MAIN = ["GPU 0", "fairlead.dev/gpu", "/dev/nvidia0", "c 195:0 rw", "can use it"]
_WAY = (
    _entry("found", -1.0, gpus=[_GPU]),
    _entry("allocated", 0.1, answer={"cdi_devices": ["fairlead.dev/gpu=GPU-0"]}),
    _entry("edits", 0.2, device_nodes=["/dev/nvidiactl (195:255)", "/dev/nvidia0 (195:0)"], mounts=["/a"]),
    _entry("isolated", 0.5, opens={"/dev/nvidia0": "OK", "/dev/nvidiactl": "OK", "195:1": "EPERM"}),
    _entry("started", 0.6),
)


def test_each_device_has_a_lane_from_the_silicon_to_the_process() -> None:
    found = tracepicture.picture(_trace(*_WAY), {"nvidia.com/gpu": ("GPU-0",)})
    assert found is not None
    ((row,), fences) = (found.rows, found.fences)
    assert [stop.main for stop in row.stops] == [
        "GPU 0",
        "fairlead.dev/gpu",
        "/dev/nvidia0",
        "c 195:0 rw",
        "can use it",
    ]
    assert [(one.number, one.answer) for one in fences] == [("195:1", "EPERM")]
    assert (found.shared, found.leaks) == (("/dev/nvidiactl",), ())


@pytest.mark.parametrize(("device", "main"), [("GPU-0::3", "GPU 0"), ("GPU-0::x", "GPU-0::x")])
def test_a_replica_is_drawn_from_its_gpu_and_no_other_id_is_taken_for_one(device: str, main: str) -> None:
    found = tracepicture.picture(_trace(*_WAY), {"nvidia.com/gpu": (device,)})
    assert found is not None
    assert found.rows[0].stops[0].main == main


def test_a_device_of_others_that_opens_is_shown_as_a_leak() -> None:
    leaking = _entry("isolated", 0.5, opens={"/dev/nvidia0": "OK", "195:1": "OK"})
    found = tracepicture.picture(_trace(*_WAY[:3], leaking), {"nvidia.com/gpu": ("GPU-0",)})
    assert found is not None
    assert [one.number for one in found.leaks] == ["195:1"]


def test_what_a_layer_did_not_record_is_missing_and_what_is_to_come_is_not_yet() -> None:
    gaps = (*_WAY[:2], _gap("edits", Record.MISSING), _gap("isolated", Record.AHEAD), _gap("started", Record.AHEAD))
    found = tracepicture.picture(_trace(*gaps), {"nvidia.com/gpu": ("GPU-0",)})
    assert found is not None
    assert [stop.main for stop in found.rows[0].stops][2:] == ["no record", "not yet", "not yet"]
    assert tracepicture.picture(_trace(_WAY[0]), {}) is None


def test_the_nodes_record_is_private_where_it_may_not_be_read() -> None:
    hidden = (_gap("found", Record.MISSING), *_WAY[1:])
    found = tracepicture.picture(_trace(*hidden), {"nvidia.com/gpu": ("GPU-0",)}, sees_node=False)
    assert found is not None
    first = found.rows[0].stops[0]
    assert (first.main, first.detail, first.state) == ("GPU-0", "the machine's record", "private")


@pytest.mark.parametrize("facts", [{"answer": 7}, {"answer": {"cdi_devices": "x"}}, {"answer": {"cdi_devices": [1]}}])
def test_facts_of_another_shape_are_no_error(facts: dict[str, Any]) -> None:
    odd = (_entry("allocated", 0.1, **facts), _entry("edits", 0.2, device_nodes={}), _entry("isolated", 1.0, opens=[1]))
    assert tracepicture.picture(_trace(*odd), {"x": ("GPU-9",)}) is not None


def test_phases_begin_where_they_say_and_stay_within_the_drawing() -> None:
    found = waterfall.waterfall(_trace(_WAY[0], _entry("a", 0.0), _entry("b", 1.0, took=0.75), _entry("c", 2.0)))
    assert found is not None
    assert [(bar.label, bar.text) for bar in found.bars] == [("a", "0 ms"), ("b", "750 ms"), ("c", "1.0 s")]
    assert all(bar.x >= 0 and bar.x + bar.width <= waterfall.WIDTH for bar in found.bars)
    assert waterfall.waterfall(_trace(_WAY[0])) is None


def test_bars_of_a_day_stand_on_each_other_and_never_leave_the_chart() -> None:
    days = charts.days(0.0, 3 * 86400.0)
    assert days == ("1970-01-01", "1970-01-02", "1970-01-03")
    values = {(days[0], "red"): 6.0, (days[0], "blue"): 3.0, (days[2], "red"): 1.0}
    chart = charts.by_day(values, days, "GPU hours")
    assert chart is not None
    low, high = chart.pieces[0], chart.pieces[1]
    assert low.title == "1970-01-01, red: 6 GPU hours"
    assert high.y + high.height == pytest.approx(low.y)
    assert all(one.y >= 0 and one.y + one.height <= charts.HEIGHT for one in chart.pieces)
    assert charts.by_day({}, days, "h") is None
    assert charts.by_day({("1969-12-31", "red"): 6.0}, days, "h") is None
    assert charts.by_day({**values, ("1969-12-31", "green"): 60.0}, days, "GPU hours") == chart


def test_the_smallest_groups_of_a_chart_count_together() -> None:
    values = {("1970-01-01", f"g{number:02}"): float(20 - number) for number in range(12)}
    chart = charts.by_day(values, ("1970-01-01",), "h")
    assert chart is not None
    assert (len(chart.groups), chart.groups[-1]) == (8, charts.REST)


def test_a_meter_says_when_its_limit_is_near_and_when_it_is_passed() -> None:
    found = amounts.meters({"a": "4", "b": "10", "memory": "2Gi", "z": "0"}, {"a": "5", "b": "9", "memory": "512Mi"})
    assert [(one.name, one.used, one.limit, one.tone) for one in found] == [
        ("a", "5", "4", "bad"),
        ("b", "9", "10", "warn"),
        ("Memory", "512 MiB", "2 GiB", ""),
        ("z", "0", "0", "warn"),
    ]


def test_the_shown_command_quotes_what_a_shell_would_read() -> None:
    wanted = request.request_of({"image": "a b", "args": "echo '$HOME; x'", "labels": "k=v w", "volumes": "d:/x:ro"})
    assert request.command(wanted) == "fairlead run -d -l 'k=v w' -v d:/x:ro 'a b' -- echo '$HOME; x'"
    assert request.curl({"image": "it's"}, address="https://h:1", socket="").startswith(
        'curl --json \'{"image": "it\'"\'"\'s"}\''
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("10%\r20%\r\nend", "20%\nend"),
        ("a\x00b\x08\tc", "ab\tc"),
        ("plain <b>", "plain <b>"),
    ],
)
def test_output_has_no_terminal_sequences(text: str, expected: str) -> None:
    assert words.output(text) == expected


def test_a_long_wait_for_a_place_has_a_row_of_its_own_and_does_not_flatten_the_rest() -> None:
    placed, started = 41.0, 41.8
    trace = _trace(
        _entry("accepted", 0.0), _entry("scheduled", placed), _entry("created", 41.5), _entry("started", started)
    )
    found = waterfall.waterfall(trace)
    assert found is not None
    assert found.wait == "41 s"
    assert [bar.label for bar in found.bars] == ["scheduled", "created", "started"]
    assert found.bars[1].width > 500, "half a second of 0.8 s"
    quick = waterfall.waterfall(_trace(_entry("accepted", 0.0), _entry("scheduled", 0.1)))
    assert quick is not None
    assert quick.wait == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(
            ("0.139802", "0.14"),
            ("0.0004", "<0.01"),
            ("10.000000", "10.00"),
            ("0", "0.00"),
            ("1234567", "1,234,567.00"),
        ),
        *(("nan", "nan"), ("much", "much"), ("", "")),
    ],
)
def test_money_has_two_decimals(text: str, shown: str) -> None:
    assert words.money(text) == shown


def test_a_form_with_ports_secrets_and_shared_memory_is_a_request_and_the_verb_that_sends_it() -> None:
    fields = {
        "image": "nb",
        "ports": "8888:8888\n127.0.0.1:53:5353/udp",
        "secrets": "wandb=WANDB_API_KEY\nhf/token:/root/.hf\nplain",
        "shm": "16Gi",
        "command": "tini --",
    }
    wanted = request.request_of(fields)
    assert wanted == {
        "image": "nb",
        "command": ["tini", "--"],
        "ports": [
            {"host_port": 8888, "container_port": 8888},
            {"host_port": 53, "container_port": 5353, "host_ip": "127.0.0.1", "protocol": "UDP"},
        ],
        "secrets": [
            {"name": "wandb", "env": "WANDB_API_KEY"},
            {"name": "hf", "key": "token", "path": "/root/.hf"},
            {"name": "plain"},
        ],
        "memory_mounts": [{"container_path": "/dev/shm", "size": "16Gi"}],
    }
    assert request.command(wanted) == (
        "fairlead run -d -p 8888:8888 -p 127.0.0.1:53:5353/udp --secret wandb=WANDB_API_KEY "
        "--secret hf/token:/root/.hf --secret plain --shm-size 16Gi --entrypoint 'tini --' nb"
    )


@pytest.mark.parametrize(
    "fields",
    [{"ports": "80"}, {"ports": "a:b"}, {"ports": "80:80;rm"}, {"secrets": "=X"}, {"secrets": "a b"}, {"command": "'"}],
)
def test_a_port_or_secret_that_cannot_be_read_is_named(fields: dict[str, str]) -> None:
    with pytest.raises(errors.Invalid):
        request.request_of({"image": "nb", **fields})


def test_a_form_is_filled_in_with_entrypoint_and_arguments_apart_or_says_that_it_is_not() -> None:
    part = core.Container(name="c", image="demo", command=("tini", "--"), args=("train.py", "a b"))
    one = container_view(core.Pod(spec=core.PodSpec(containers=(part,))))
    for args, copied in ((part.args, "most"), (("x" * 2000,), "image")):
        asked = definition.Definition(command=part.command, args=args)
        address = headline.form_address(msgspec.structs.replace(one, definition=asked), "")
        fields = dict(urllib.parse.parse_qsl(address.partition("?")[2]))
        assert (fields["image"], fields["copied"]) == ("demo", copied)
        if copied == "most":
            wanted = request.request_of(fields)
            assert (wanted["command"], wanted["args"]) == (["tini", "--"], ["train.py", "a b"])


def test_a_command_is_shown_and_asked_again_as_it_was_typed() -> None:
    """A pod doubles the dollar signs that Kubernetes would read: who runs it again must not double them once more."""
    typed = "for i in $(seq 3); do echo $i $$; done"
    stored = core.Container(
        name="c",
        image="demo",
        command=("sh", "-c", environment.literal(typed)),
        env=(core.EnvVar(name="A", value=environment.literal("$(B)")),),
        volume_mounts=(core.VolumeMount(name="volume-0", mount_path="/data"),),
    )
    assert stored.command[2] != typed
    volume = core.Volume(name="volume-0", persistent_volume_claim=core.ClaimVolume(claim_name="datasets"))
    shown = definition.definition(core.Pod(spec=core.PodSpec(containers=(stored,), volumes=(volume,))))
    assert shown is not None
    assert shown.command == ("sh", "-c", typed)
    assert [one.value for one in shown.env] == ["$(B)"]
    assert [one.volume for one in shown.mounts] == ["datasets"]


def test_tenancies_stand_for_their_namespaces_and_the_longest_first() -> None:
    spaces = {"t-red-0a1b2c": "red", "t-red-0a1b2c-x": "other"}
    assert words.named("2 GPUs are reserved for t-red-0a1b2c", spaces) == "2 GPUs are reserved for red"
    assert words.named("t-red-0a1b2c-x/train", spaces) == "other/train"
    assert words.named("default", {}) == "default"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("localhost/team/a:2.5", "localhost/<wbr>team/<wbr>a:<wbr>2.5"),
        ("https://h:8443/x", "https:/<wbr>/<wbr>h:<wbr>8443/<wbr>x"),
        ("<b>/", "&lt;b&gt;/<wbr>"),
        ("a\x1b/&amp;", "a\\u001b/<wbr>&amp;amp;"),
    ],
)
def test_long_names_may_break_between_their_parts_and_are_text(text: str, shown: str) -> None:
    assert render._environment().filters["broken"](text) == shown
