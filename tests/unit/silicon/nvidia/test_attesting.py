"""`nvattest` in a verifier's machine, played by a script: its forms, its failures, and whose claims are whose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.silicon.nvidia import attesting
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import Attestation, GPUReport, GuestReport

REPORT = GuestReport(
    nonce="5f", driver="580.95", gpus=tuple(GPUReport(pci=f"0000:0{at}:00.0", vbios=f"96.00.0{at}") for at in (1, 2))
)
NONCE = guestreport.attestation_nonce("5f")


def claims(at: int, **changes: Any) -> dict[str, Any]:
    """What nvattest says of a GPU that is well."""
    return {
        "x-nvidia-device-type": "gpu",
        "eat_nonce": "NONCE",
        "measres": "success",
        "secboot": True,
        "dbgstat": "disabled",
        "hwmodel": "GH100 A01 GSP BROM",
        "x-nvidia-gpu-vbios-version": f"96.00.0{at}",
        "x-nvidia-gpu-attestation-report-signature-verified": True,
        "x-nvidia-gpu-attestation-report-nonce-match": True,
        "x-nvidia-mismatch-measurement-records": None,
        **changes,
    }


def program(folder: Path, answer: object, *, needs_form: bool = False, code: int = 0) -> str:
    """Write a program that plays nvattest: it answers with the nonce that it was given.

    Args: needs_form: it prints words unless it is asked for JSON, and else knows no such option.
    """
    path = folder / "nvattest"
    text = json.dumps(answer) if not isinstance(answer, str) else answer
    (folder / "answer").write_text(text)
    known = "shift 2" if needs_form else 'echo "--format: not expected" >&2; exit 109'
    words = '[ "$1" != attest ] || { echo "Attestation: good"; exit 0; }' if needs_form else ""
    path.write_text(
        f"""#!/bin/sh
{words}
case "$1" in --format) {known};; esac
[ "$1 $2 $3 $4 $5 $6" = "attest --device gpu --verifier local --nonce" ] || exit 9
sed "s/NONCE/$7/g" {folder}/answer
exit {code}
"""
    )
    path.chmod(0o755)
    return str(path)


async def found(folder: Path, answer: object, **how: Any) -> Sequence[Attestation]:
    report = await attesting.attest(REPORT, program(folder, answer, **how))
    assert guestreport.parse(guestreport.emit(report)) == report
    told = [one.attestation for one in report.gpus]
    assert len(told) == 2
    return [one for one in told if one is not None]


def answer(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"claims": list(gpus), "detached_eat": [["JWT", "x"]], "result_code": 0, "result_message": "Ok", **more}


@pytest.mark.parametrize("needs_form", [False, True], ids=["prints JSON", "prints words unless asked"])
async def test_each_gpu_has_its_own_claims_signed_for_this_start(tmp_path: Path, needs_form: bool) -> None:
    told = await found(tmp_path, answer(claims(1), claims(2, dbgstat="enabled")), needs_form=needs_form)
    well = Attestation(nonce=NONCE, is_signed=True, measurements="success", secure_boot=True, debug="disabled")
    assert told == [
        well,
        Attestation(**{**{name: getattr(well, name) for name in well.__struct_fields__}, "debug": "enabled"}),
    ]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(claims(1)), "it attested 1 GPUs, and the driver lists 2"),
        (answer(claims(1), claims(2), result_code=7, result_message="NVAT\x1b[31m RIM"), "nvattest failed with 7"),
        (answer(claims(1), claims(2, **{"x-nvidia-device-type": "nvswitch"})), "of other devices"),
        (answer(), "of other devices, or of none"),
        (answer(claims(1), claims(2, secboot="yes")), "cannot be read"),
        ('{"claims": [', "cannot be read"),
        ("no driver", "printed no JSON"),
        ("", "printed no JSON"),
        ("x" * (5 << 20), ""),
    ],
)
async def test_what_it_cannot_do_is_reported_of_each_gpu(tmp_path: Path, said: object, why: str) -> None:
    for one in await found(tmp_path, said):
        assert one.failure
        assert why in one.failure
        assert one.failure.isprintable()
        assert not one.is_signed


async def test_claims_of_another_gpus_firmware_are_none_of_its_own(tmp_path: Path) -> None:
    first, second = await found(tmp_path, answer(claims(2), claims(2)))
    assert first.failure == "its claims are of VBIOS 96.00.02, and the driver reads 96.00.01"
    assert second.failure == ""


async def test_a_program_that_is_none_is_reported(tmp_path: Path) -> None:
    report = await attesting.attest(REPORT, str(tmp_path / "missing"))
    assert all(one.attestation is not None and one.attestation.failure for one in report.gpus)
