"""The ledger by the API: who has which GPU, and GPUs kept back in a person's name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.plan.lease import baseline, intent
from fairlead.plan.lease.row import Claim, Row, State
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application, in_process


class Ledger:
    """A `port.Ledger` that does what it is asked."""

    def __init__(self) -> None:
        claim = Claim(device="GPU-0", namespace="default", pod="train", container="main")
        self.found = {
            "GPU-0": Row(key="GPU-0", state=State.HELD, since=1.0, claims=(claim,)),
            "GPU-1": Row(key="GPU-1"),
        }
        self.asked: list[tuple[str, str, str, str]] = []
        self.learned = baseline.Learned(boards={"H100": baseline.Baseline(board="H100", vbios=("96.00",))})
        self.decided = baseline.Decided()

    async def baselines(self) -> tuple[baseline.Learned, baseline.Decided]:
        return self.learned, self.decided

    async def decide(self, act: Callable[[baseline.Learned, baseline.Decided], baseline.Decided]) -> None:
        self.decided = act(self.learned, self.decided)

    async def rows(self) -> Mapping[str, Row]:
        return self.found

    async def ask(self, verb: str, gpu: str, *, by: str, why: str) -> Row:
        row = intent.find_row(self.found, gpu)
        self.asked.append((verb, row.key, by, why))
        self.found[row.key] = replace(row, state=State.QUARANTINED, message=why)
        return self.found[row.key]


@pytest.fixture
def ledger(world: World) -> Ledger:
    made = Ledger()
    world.services = replace(world.services, backend=replace(world.backend, ledger=made))
    world.backend = world.services.backend
    return made


@pytest.fixture
async def client(world: World, ledger: Ledger) -> AsyncIterator[httpx.AsyncClient]:
    transport = in_process(application(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as it:
        yield it


async def test_the_ledger_is_listed_and_a_gpu_is_kept_back_in_roots_name(
    client: httpx.AsyncClient, ledger: Ledger
) -> None:
    first = (await client.get("/v1/leases")).json()["items"][0]
    assert (first["gpu"], first["state"], first["holders"]) == ("GPU-0", "Held", ["default/train/main"])
    done = await client.post("/v1/leases:quarantine", json={"gpu": "GPU-1", "why": "fan"})
    assert (done.status_code, done.json()["state"]) == (200, "Quarantined")
    assert ledger.asked == [("quarantine", "GPU-1", "root", "fan")]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"gpu": "GPU"}, 404),
        ({"gpu": "\x00"}, 404),
        ({"gpu": "GPU-1", "why": "a\x1bb"}, 422),
        ({"gpu": "GPU-1", "why": "x" * 501}, 400),
        ({"why": "x"}, 400),
    ],
)
async def test_what_names_no_gpu_or_is_no_plain_line_is_refused(
    client: httpx.AsyncClient, ledger: Ledger, body: dict[str, str], status: int
) -> None:
    assert (await client.post("/v1/leases:release", json=body)).status_code == status
    assert ledger.asked == []


async def test_only_the_machines_administrators_see_and_change_the_ledger(
    world: World, ledger: Ledger, tmp_path: Path
) -> None:
    async with opened(world, tmp_path) as lab:
        await _tried(lab, ledger)


async def _tried(lab: Lab, ledger: Ledger) -> None:
    assert (await lab.ask("owner", "GET", "/v1/leases")).status_code == 403
    assert (await lab.ask("owner", "POST", "/v1/leases:quarantine", json={"gpu": "GPU-1"})).status_code == 403
    assert (await lab.ask("root", "POST", "/v1/leases:quarantine", json={"gpu": "GPU-1"})).status_code == 200
    assert ledger.asked == [(intent.QUARANTINE, "GPU-1", "root", "")]


async def test_two_accounts_approve_a_baseline_and_one_cannot_do_it_alone(
    world: World, ledger: Ledger, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    asked = {"board": "H100"}
    nobody = await client.post("/v1/baselines:approve", json=asked)
    assert (nobody.status_code, nobody.json()["reason"]) == (403, "AccountRequired")
    async with opened(world, tmp_path) as lab:
        await lab.account("second", is_root=True)
        assert (await lab.ask("owner", "POST", "/v1/baselines:approve", json=asked)).status_code == 403
        assert (await lab.ask("root", "POST", "/v1/baselines:approve", json={"board": "x\x1b"})).status_code == 404
        first = (await lab.ask("root", "POST", "/v1/baselines:approve", json=asked)).json()
        assert (first["approved"], first["waits"], first["approvers"]) == (False, True, ["root"])
        again = await lab.ask("root", "POST", "/v1/baselines:approve", json=asked)
        assert (again.status_code, again.json()["reason"]) == (403, "SecondApprovalMissing")
        second = (await lab.ask("second", "POST", "/v1/baselines:approve", json=asked)).json()
        assert (second["approved"], second["waits"], second["approvers"]) == (True, False, ["root", "second"])
        (listed,) = (await lab.ask("second", "GET", "/v1/baselines")).json()["items"]
        assert listed == second
        audit = (await lab.ask("root", "GET", "/v1/audit")).json()["items"]
        assert {"root", "second"} <= {one["account"] for one in audit if one["object"] == "/v1/baselines:approve"}
        forgotten = await lab.ask("root", "POST", "/v1/baselines:forget", json=asked)
        assert forgotten.json()["approved"] is False


async def test_without_a_ledger_the_answer_says_how_to_have_one(world: World) -> None:
    transport = in_process(application(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as it:
        answer = await it.get("/v1/leases")
    assert (answer.status_code, answer.json()["reason"]) == (503, "LedgerMissing")
    assert errors.row_of(errors.Unavailable("", reason="")).http == 503
