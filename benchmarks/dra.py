"""The allocator of claims alone, beside the reference's: one node, from its pools to the status of its claims.

Selectors cost nothing in most rows, so that the search is measured; rows that say CEL evaluate what classes and claims
really say. The scored mode has rows of its own, and no peer: the reference takes the first answer.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import drareference, frame
from fairlead.plan.claim import allocate, default, expression
from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.claim.pool import held, pool
from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.search.preference import Preferences
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.device import NUMA_NODE, PCIE_ROOT

DRIVER = "gpu.example.com"
NODE = {"metadata": {"name": "node-1"}}
SOURCE = "Kubernetes 1.37, dynamic-resource-allocation, run beside on this machine"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question, its bar and what the reference was seen to take."""

    name: str
    slices: list[Document]
    claims: list[Document]
    bar_us: float | None
    """None: no slower than the reference in the same run."""
    peer_us: float = 0
    """What the reference took where the facts were measured; it stands where it cannot be built."""
    runs: int = 30
    peer_runs: int = 1
    selector: str = "true"
    """Of the class; `true` costs nothing here."""
    preferences: Preferences | None = None
    """Of the scored mode, which has no peer."""


def cases() -> Iterator[Case]:
    """Yield the rows."""
    profile: dict[str, Any] = {"selectors": [{"cel": {"expression": _selects("1g.10gb")}}]}
    match = [{"matchAttribute": f"{DRIVER}/numa"}]
    pair = [request("a", count=12), request("b", count=12)]
    yield Case(
        name="1 of 8 GPUs", slices=gpus(8), claims=[claim(request())], bar_us=50, peer_us=25, runs=2000, peer_runs=2000
    )
    yield Case(
        name="7 x 1g.10gb of 152 partitions",
        slices=partitions(),
        claims=[claim(request(count=7, **profile))],
        bar_us=None,
        peer_us=394,
        runs=300,
        peer_runs=300,
    )
    yield from _with_cel(profile)
    yield from _scored(profile)
    yield Case(name="21 of 20", slices=gpus(20), claims=[claim(request(count=21))], bar_us=10_000, peer_us=3.0e6)
    yield Case(name="12 + 12 of 20", slices=gpus(20), claims=[claim(*pair)], bar_us=10_000, peer_us=20e6)
    yield Case(
        name="16 of 32 by attribute",
        slices=gpus(32, 3),
        claims=[claim(request(count=16), constraints=match)],
        bar_us=10_000,
        peer_us=0.3e6,
    )
    yield Case(name="27 of 26", slices=gpus(26), claims=[claim(request(count=27))], bar_us=10_000, peer_us=8.8e6)


def _with_cel(profile: Document) -> Iterator[Case]:
    typed = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].attribute1 == "same"'
    claims = [claim(request())]
    yield Case(
        name="1 of 8 GPUs, CEL",
        slices=gpus(8),
        claims=claims,
        bar_us=50,
        peer_us=25,
        runs=2000,
        peer_runs=2000,
        selector=typed,
    )
    yield Case(
        name="7 x 1g.10gb of 152 partitions, CEL",
        slices=partitions(),
        claims=[claim(request(count=7, **profile))],
        bar_us=None,
        peer_us=394,
        runs=300,
        peer_runs=300,
        selector=f'device.driver == "{DRIVER}" && "profile" in device.attributes["{DRIVER}"]',
    )


def _scored(profile: Document) -> Iterator[Case]:
    same = [{"matchAttribute": NUMA_NODE}]
    asked = (
        ("1 of 8 GPUs", gpus(8), claim(request()), 500),
        ("4 of 8 GPUs by attribute", gpus(8), claim(request(count=4), constraints=same), 2_000),
        ("7 x 1g.10gb of 152 partitions", partitions(), claim(request(count=7, **profile)), 20_000),
    )
    for preferences, mode in ((None, "first"), (Preferences(), "scored")):
        for name, slices, one, bar_us in asked:
            yield Case(
                name=f"{name}, {mode}",
                slices=slices,
                claims=[one],
                bar_us=bar_us,
                runs=200,
                selector=f'device.driver == "{DRIVER}"',
                preferences=preferences,
                peer_runs=0,
            )


def request(name: str = "gpu", **fields: Any) -> Document:
    """Return a request."""
    return {"name": name, "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1, **fields}}


def claim(*requests: Document, **devices: Any) -> Document:
    """Return a claim."""
    return {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": list(requests), **devices}}}


def gpus(count: int, numa: int = 2) -> list[Document]:
    """Return the slice of a node with GPUs of nine attributes each."""
    devices = [
        {
            "name": f"gpu-{at:02}",
            "attributes": {
                "uuid": {"string": f"GPU-{at:04}"},
                "numa": {"int": at % numa},
                NUMA_NODE: {"int": at // 4},
                PCIE_ROOT: {"string": f"pci0000:{at // 2:02x}"},
                **{f"attribute{key}": {"string": "same"} for key in range(5)},
            },
        }
        for at in range(count)
    ]
    return [_slice("gpus", 1, devices=devices)]


_PARTITIONS = (
    *(("1g.10gb", 16, 10, (at,)) for at in range(7)),
    *(("1g.20gb", 16, 20, (at, at + 1)) for at in (0, 2, 4, 6)),
    *(("2g.20gb", 32, 20, (at, at + 1)) for at in (0, 2, 4)),
    *(("3g.40gb", 60, 40, tuple(range(at, at + 4))) for at in (0, 4)),
    ("4g.40gb", 64, 40, tuple(range(4))),
    ("7g.80gb", 132, 80, tuple(range(8))),
    ("gpu", 132, 80, tuple(range(8))),
)


def partitions() -> list[Document]:
    """Return the slices of a node with 8 H100 and every partition of each."""
    devices, sets = [], []
    for gpu in range(8):
        whole = {"memory": "80Gi", "multiprocessors": "132", **{f"memory-slice-{at}": "1" for at in range(8)}}
        sets.append({"name": f"gpu-{gpu}", "counters": _counters(whole)})
        for number, (profile, cores, memory, places) in enumerate(_PARTITIONS):
            taken = {"memory": f"{memory}Gi", "multiprocessors": str(cores)}
            taken |= {f"memory-slice-{at}": "1" for at in places}
            devices.append(
                {
                    "name": f"gpu-{gpu}-{number}",
                    "attributes": {"profile": {"string": profile}},
                    "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": _counters(taken)}],
                }
            )
    parts = [devices[at : at + 64] for at in range(0, len(devices), 64)]
    slices = [_slice(f"devices-{at}", len(parts) + 1, devices=part) for at, part in enumerate(parts)]
    return [_slice("counters", len(parts) + 1, sharedCounters=sets), *slices]


def _counters(amounts: Mapping[str, str]) -> Document:
    return {name: {"value": amount} for name, amount in amounts.items()}


def _slice(name: str, count: int, **spec: Any) -> Document:
    names = {"name": "node-1", "generation": 1, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": names, "nodeName": "node-1", **spec}}


def _selects(profile: str) -> str:
    return f'device.attributes["{DRIVER}"].profile == "{profile}"'


def _matches(text: str, one: Candidate) -> bool:
    return text == "true" or one.device.attributes["profile"].string == text.split('"')[3]


def _read(kind: str, document: Document) -> Any:
    return dialect.read({"apiVersion": dialect.V1, "kind": kind, **document}).item


def _class(case: Case) -> Document:
    return {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": case.selector}}]}}


def ours_us(case: Case) -> float:
    """Return the median of our time for one node."""
    claims = [default.claim(_read("ResourceClaim", one)) for one in case.claims]
    slices = [_read("ResourceSlice", one) for one in case.slices]
    pools = pool.Pools(slices, DEFAULTS).on(pool.Site(name="node-1", labels={}))
    answer = functools.partial(
        allocate.allocate,
        claims,
        {"any": _read("DeviceClass", _class(case))},
        pools,
        held.NOTHING,
        matches=_matches if case.selector == "true" else expression.matcher(),
        preferences=case.preferences,
    )
    times = []
    for _ in range(case.runs):
        started = time.perf_counter()
        answer()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def peer_us(case: Case) -> float | None:
    """Return the mean of the reference's time in this run; None: it cannot be built here."""
    program = drareference.build() if case.peer_runs else None
    if program is None:
        return None
    world = {
        "slices": case.slices,
        "classes": [_class(case)],
        "claims": case.claims,
        "node": NODE,
        "held": [],
        "runs": case.peer_runs,
    }
    return float(drareference.answers(program, [world], limit_s=10)[0]["micros"])


@frame.benchmark("dra")
def dra_rows() -> Iterator[frame.Row]:
    """Yield the search's rows."""
    for case in cases():
        if not case.peer_runs:
            yield frame.Row(name=f"claims: {case.name}", ours=ours_us(case), unit="us", bar=case.bar_us)
            continue
        seen = peer_us(case)
        peer = case.peer_us if seen is None else seen
        yield frame.Row(
            name=f"claims: {case.name}",
            ours=ours_us(case),
            unit="us",
            peer=peer,
            peer_name=drareference.NAME,
            peer_source=SOURCE if seen is None else "this run, ended after 10 s",
            bar=peer if case.bar_us is None else case.bar_us,
        )
