"""`fairlead dra eval`: what an expression gives and costs on published devices."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from fairlead import errors
from fairlead.cli.layer.dra import evaluate, group
from fairlead.plan.claim.pool.candidate import DeviceID
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute

_SLICES = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: d.example
  nodeName: n1
  pool: {name: n1, generation: 2, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    attributes: {type: {string: gpu}, version: {version: 1.2.3}}
    capacity: {memory: {value: 80Gi}}
  - {name: gpu-1, attributes: {type: {string: gpu}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: old}
spec:
  driver: d.example
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gone}]
"""
_A = 'device.attributes["d.example"]'


def _eval(*words: str, stdin: str = _SLICES) -> Result:
    return CliRunner().invoke(group.group, ["eval", "-f", "-", *words], input=stdin, standalone_mode=False)


def test_value_and_cost_of_each_device_are_shown_and_what_is_left_out() -> None:
    done = _eval(f'{_A}.type == "gpu"')
    assert done.return_value == 0
    assert done.stdout.splitlines() == [
        "bool, costs at most 5 by the API server's estimate of 1.37 (limit 1000000)",
        "DEVICE               COST   VALUE",
        "d.example/n1/gpu-0   5      true",
        "d.example/n1/gpu-1   5      true",
        "2 devices: 2 true. It cost 5 at most, of 1000000.",
        "not looked at: 1 slice of an older generation of a pool",
    ]


def test_a_value_of_any_type_is_shown_and_said_to_select_nothing() -> None:
    done = _eval('device.capacity["d.example"].?memory', "--device", "gpu-0")
    assert "no selector, since those are of type bool" in done.stdout
    assert 'd.example/n1/gpu-0   4      optional.of(quantity("80Gi"))' in done.stdout


def test_an_expression_that_fails_on_a_device_shows_where_and_ends_with_1() -> None:
    done = _eval(f"{_A}.version.major() == 1")
    lines = done.stdout.splitlines()
    assert done.return_value == 1
    assert "d.example/n1/gpu-1   6      error: no such key: version at line 1, column 31" in lines
    at = lines.index(f"  {_A}.version.major() == 1")
    assert lines[at + 1] == " " * (2 + 30) + "^"


def test_values_of_json_are_plain_where_json_has_the_type() -> None:
    for text, value, kind in (("true", True, "bool"), ("1 + 1", 2, "int"), (f"{_A}.version", 'semver("1.2.3")', "")):
        done = _eval(text, "-o", "json", "--device", "d.example/n1/gpu-0")
        (one,) = json.loads(done.stdout)["devices"]
        assert one["value"] == value
        assert kind in one["type"]


def test_an_expression_that_is_no_cel_shows_line_column_and_caret() -> None:
    done = _eval("true &&\n  device.nope")
    assert isinstance(done.exception, errors.Invalid)
    assert "at line 2, column 9" in done.exception.message
    assert done.exception.message.endswith("\n    device.nope\n          ^")


def test_a_long_line_is_cut_around_the_caret() -> None:
    text = f"{'true || ' * 50}device.nope{' || true' * 50}"
    done = _eval(text)
    assert isinstance(done.exception, errors.Invalid)
    _, shown, mark = done.exception.message.split("\n")
    assert shown[mark.index("^")] == "."
    assert len(shown) < 80


def test_an_expression_that_costs_too_much_says_so() -> None:
    loop = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    text = f"{loop}.all(a, {loop}.all(b, {loop}.all(c, {loop}.all(d, {loop}.all(e, {loop}.all(f, a + f > 0))))))"
    done = _eval(text, "--device", "gpu-0")
    assert done.return_value == 1
    assert "so it refuses this one" in done.stdout
    assert "cost limit exceeded" in done.stdout
    assert " !" in done.stdout


def test_a_release_has_its_own_costs() -> None:
    words = ('device.driver.includes("d")', "-o", "json", "--release")
    costs = [json.loads(_eval(*words, one).stdout)["devices"][0]["cost"] for one in ("1.36", "1.37")]
    assert costs == [3, 2]


def test_a_device_that_is_not_there_is_an_error_with_the_next_step() -> None:
    done = _eval("true", "--device", "d.example/n1/gpu-9")
    assert isinstance(done.exception, errors.NotFound)
    assert done.exception.hint == "did you mean d.example/n1/gpu-1?"


def test_devices_are_bounded_and_counted() -> None:
    found = [(DeviceID("d", "p", f"gpu-{at}"), Device(name=f"gpu-{at}")) for at in range(60)]
    done = evaluate.evaluate(evaluate.compiled("true", "1.37"), found)
    assert "10 devices: 10 true more: --all shows them" in list(evaluate.lines(done, every=False))
    assert len(list(evaluate.lines(done, every=True))) == 63
    assert evaluate.plain(done, every=False).left_out == ("not shown: 10 devices: 10 true: --all shows them",)


def test_a_device_that_cannot_be_read_does_not_hide_the_others() -> None:
    bad = Device(name="bad", attributes={"v": DeviceAttribute(version="one")})
    found = [(DeviceID("d", "p", one.name), one) for one in (bad, Device(name="good"))]
    one, two = evaluate.evaluate(evaluate.compiled("true", "1.37"), found).devices
    assert one.error.startswith("the device cannot be read: attribute 'v': no semantic version")
    assert two.value is True


def test_it_ends_after_its_time_and_counts_what_is_left() -> None:
    ticks = iter(range(0, 1000, 15))
    found = [(DeviceID("d", "p", f"gpu-{at}"), Device()) for at in range(9)]
    done = evaluate.evaluate(evaluate.compiled("true", "1.37"), found, clock=lambda: next(ticks))
    assert len(done.devices) == 1
    assert done.left_out == ("not evaluated: 8 devices, since 20 s were over: choose some with --device",)


@pytest.mark.parametrize("text", ["\x1b[2J" + "a" * 20_000, "(" * 5000, "[" * 300, "'\ud800'", "a" * 10_000_000])
def test_hostile_expressions_end_quickly_with_a_bounded_error(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        evaluate.compiled(text, "1.37")
    assert len(refused.value.message) < 3000
    assert "\x1b" not in refused.value.message.split("\n", 1)[-1]
