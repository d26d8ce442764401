"""Faults of simulated silicon: values that are refused, what `recover` lifts, and what a restart keeps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.gpu import SPARED, UNKNOWN_XID, XIDS
from fairlead.silicon.sim import fault, machine, profile

VALUES = {"temperature": "95", "power": "300.5", "utilization": "40", "vbios": "96.00", "inforom": "G1", "serial": "S1"}
PASSING = {"slow", "event-errors"}
"""What the page says a restart ends."""
LAYOUT = {"mig-mode", "mig-create", "mig-destroy", "recover"}
BREAKING = sorted(fault.FAULTS.keys() - LAYOUT - {"event-errors"})


def made(state: Path | None = None) -> machine.Machine:
    host = machine.Machine(profile.load("h100x8"))
    host.state = state
    return host


def inject(host: machine.Machine, name: str, value: str | None = None) -> str:
    return fault.inject(host, name, gpu=1, value=value)


def facts(host: machine.Machine) -> dict[str, Any]:
    """Return all that is known of the broken GPU but what it is made of."""
    gpu = host.gpus[1]
    return {
        one.name: getattr(gpu, one.name) for one in dataclasses.fields(gpu) if one.name not in {"board", "partition"}
    }


@pytest.mark.parametrize("name", BREAKING)
def test_recover_lifts_every_fault(name: str) -> None:
    host, whole = made(), facts(made())
    inject(host, name, VALUES.get(name))
    assert facts(host) != whole
    inject(host, "recover")
    assert facts(host) == whole


@pytest.mark.parametrize("name", [name for name in BREAKING if name not in PASSING])
def test_a_fault_outlives_a_restart(name: str, tmp_path: Path) -> None:
    host = made(tmp_path / "state.json")
    inject(host, name, VALUES.get(name))
    host.save()
    again = made(host.state)
    again.take_up()
    assert facts(again) == facts(host)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "-5"),
        ("temperature", "4294967300"),
        ("power", "inf"),
        ("power", "1e300"),
        ("power", "-1"),
        ("slow", "inf"),
        ("slow", "nan"),
        ("slow", "1e9"),
        ("recovery-action", "-1"),
        ("event-errors", "-1"),
        ("ecc", "1000000000"),
        ("xid", "-1"),
        ("xid", "79@-1"),
        ("xid", "79@0/4294967296"),
        ("process", "-2"),
        ("mig-create", "1g.10gb@-1"),
    ],
)
def test_a_number_that_no_gpu_can_say_is_refused_with_the_range(name: str, value: str) -> None:
    host, whole = made(), facts(made())
    with pytest.raises(errors.FairleadError) as caught:
        inject(host, name, value)
    assert value in caught.value.message or name.startswith(("mig", "process"))
    assert (facts(host), host.wait_errors) == (whole, 0)


@given(st.sampled_from(sorted(fault.FAULTS)), st.text(max_size=40) | st.integers().map(str) | st.floats().map(str))
def test_no_value_is_more_than_refused(name: str, value: str) -> None:
    host = made()
    try:
        inject(host, name, value)
    except errors.FairleadError:
        return
    host.read(host.gpus[1])


@pytest.mark.parametrize("xid", [*XIDS, 998])
def test_an_xid_asks_for_a_recovery_unless_it_leaves_the_gpu_offered(xid: int) -> None:
    host = made()
    inject(host, "xid", str(xid))
    assert bool(host.gpus[1].recovery_action) is (XIDS.get(xid, UNKNOWN_XID)[0] not in SPARED)


def test_a_file_that_is_damaged_in_its_middle_is_set_aside_and_changes_nothing(tmp_path: Path) -> None:
    host = made(tmp_path / "state.json")
    inject(host, "temperature", "95")
    inject(host, "mig-mode", "on")
    inject(host, "mig-create", "1g.10gb")
    host.save()
    assert host.state is not None
    before = facts(host), host.gpus[1].mig_uuids()
    document = json.loads(host.state.read_bytes())
    document["gpus"][0]["readings"]["temperature_c"] = 50
    document["gpus"][1]["instances"][0]["row"] = 999
    host.state.write_text(json.dumps(document))
    host.take_up()
    assert (facts(host), host.gpus[1].mig_uuids()) == before
    assert host.gpus[0].temperature_c is None
    assert not host.state.exists()
    assert list(tmp_path.iterdir())
