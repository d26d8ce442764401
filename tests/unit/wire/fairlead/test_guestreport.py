"""A guest's report: what is taken, and everything else that a hostile guest may write."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import GPUReport, GuestReport

REPORT = GuestReport(
    nonce="5f",
    driver="580.95.05",
    gpus=(GPUReport(pci="0000:01:00.0", serial="1650", vbios="96.00.74.00.01", ecc_mode=True, module=3),),
)


def _changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(guestreport.emit(REPORT)) | changes).encode()


def _gpu(**changes: Any) -> bytes:
    return _changed(gpus=[{"pci": "0000:01:00.0", **changes}])


def test_a_report_comes_back_as_it_was() -> None:
    line = guestreport.emit(REPORT)
    assert line.count(b"\n") == 1
    assert guestreport.parse(line) == REPORT


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b"[" * 50_000,
        _changed(version="fairlead.guest-report/2"),
        _changed(nonce="x" * 97),
        _changed(nonce="a\x1b[2J"),
        _changed(driver="580\n"),
        _changed(command="reboot"),
        _changed(gpus=[{"pci": "0000:01:00.0"}] * 17),
        _gpu(pci="../../etc"),
        _gpu(pci="0000:01:00.0\n"),
        _gpu(serial="\x00"),
        _gpu(vbios="é"),
        _gpu(module=-1),
        _gpu(ecc_uncorrected=1 << 60),
        _gpu(ecc_mode="yes"),
        _gpu(free=True),
        _gpu(**{"\x1b[2J": 1}),
        _gpu(failure="x" * 401),
    ],
    ids=[
        *("empty", "no-text", "nothing", "deep", "newer", "long-nonce", "escape", "line-end", "more", "17-gpus"),
        *(
            "path",
            "address-line-end",
            "nul",
            "foreign",
            "negative",
            "huge",
            "no-bool",
            "more-of-a-gpu",
            "name-with-escape",
            "long-failure",
        ),
    ],
)
def test_anything_else_is_no_report(line: bytes) -> None:
    with pytest.raises(errors.ProtocolError) as refused:
        guestreport.parse(line)
    assert refused.value.reason == guestreport.MALFORMED
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 400


def test_fields_that_a_gpu_does_not_say_are_left_out() -> None:
    assert json.loads(msgspec.json.encode(GPUReport(pci="0000:01:00.0"))) == {"pci": "0000:01:00.0"}
