"""Makes random small clusters and claims, as documents: for brute force here and for the reference's own program."""

from __future__ import annotations

import random
from typing import Any

Document = dict[str, Any]
DRIVERS = ("a.example.com", "b.example.com")
NODE = {"metadata": {"name": "node-1", "labels": {"zone": "a"}}}


def make(dice: random.Random, *, lists: bool = False, hard: bool = False) -> Document:
    """Return slices, classes, claims and what is held; `hard`: more devices and larger counts."""
    slices: list[Document] = []
    for driver in DRIVERS[: dice.choice((1, 1, 2))]:
        for number in range(dice.choice((1, 1, 2))):
            slices += _pool(dice, driver, dice.choice(("pool", f"pool-{number}", "node-1")), lists, hard)
    names = set()
    slices = [
        one
        for one in slices
        if not (one["metadata"]["name"] in names or names.add(one["metadata"]["name"]))  # type: ignore[func-returns-value]
    ]
    generations = {(_name(one), _generation(one)) for one in slices}
    settled = [one for one in slices if sum(name == _name(one) for name, _ in generations) == 1]
    # What is held while a pool is replaced is another case, with an answer of ours: see the test of defect F.
    held = [one for item in settled for one in _held(dice, item)]
    claims = [_claim(dice, number, hard) for number in range(dice.choice((1, 1, 1, 2)))]
    return {"slices": slices, "classes": _classes(), "claims": claims, "held": held, "node": NODE, "lists": lists}


def _name(item: Document) -> tuple[str, str]:
    return item["spec"]["driver"], item["spec"]["pool"]["name"]


def _generation(item: Document) -> int:
    return int(item["spec"]["pool"]["generation"])


def _classes() -> list[Document]:
    def one(name: str, expression: str) -> Document:
        config = [{"opaque": {"driver": "a.example.com", "parameters": {"of": name}}}]
        return {
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}], "config": config},
        }

    return [one("any", "true"), one("a", 'device.driver == "a.example.com"')]


def _pool(dice: random.Random, driver: str, name: str, lists: bool, hard: bool) -> list[Document]:
    counted = dice.random() < 0.4
    sets = [f"set-{at}" for at in range(dice.choice((1, 2)))] if counted else []
    count = dice.randint(1, 4 if hard else 3)
    total = count + (1 if counted else 0)
    said = total + (dice.random() < 0.05)
    generation = dice.choice((1, 1, 2))
    base = {"driver": driver, "pool": {"name": name, "generation": generation, "resourceSliceCount": said}}
    shared = dice.random() < 0.25
    found = []
    for at in range(count):
        number = dice.randint(0, 3 if hard else 2)
        devices = [_device(dice, f"d{at}-{one}", driver, sets, shared, lists) for one in range(number)]
        where: Document = {"nodeName": "node-1"}
        roll = dice.random()
        if roll < 0.1:
            where = {"allNodes": True}
        elif roll < 0.15:
            where = {"nodeName": "node-2"}
        elif roll < 0.2:
            term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [dice.choice("ab")]}]}
            where = {"nodeSelector": {"nodeSelectorTerms": [term]}}
        elif roll < 0.3 and devices:
            where = {"perDeviceNodeSelection": True}
            devices = [
                {**one, **dice.choice(({"nodeName": "node-1"}, {"nodeName": "node-2"}, {"allNodes": True}))}
                for one in devices
            ]
        spec = {**base, **where, **({"devices": devices} if devices else {})}
        found.append({"metadata": {"name": f"{driver[0]}-{name}-{dice.randint(0, 9)}-{at}"}, "spec": spec})
    if counted:
        given = [
            {"name": one, "counters": {"m": {"value": str(dice.randint(2, 6))}, "n": {"value": "4"}}} for one in sets
        ]
        spec = {**base, "nodeName": "node-1", "sharedCounters": given}
        found.append({"metadata": {"name": f"{driver[0]}-{name}-counters"}, "spec": spec})
    return found


def _device(dice: random.Random, name: str, driver: str, sets: list[str], shared: bool, lists: bool) -> Document:
    found: Document = {"name": name, "attributes": {}}
    for key in ("x", "y"):
        if dice.random() < 0.9:
            qualified = key if dice.random() < 0.7 else f"{driver}/{key}"
            value: Document = {"string": dice.choice("pq")} if dice.random() < 0.8 else {"int": dice.randint(1, 2)}
            if lists and dice.random() < 0.5:
                value = {"strings": sorted(dice.sample("pqr", dice.randint(1, 2)))}
            found["attributes"][qualified] = value
    if sets and dice.random() < 0.8:
        taken = dice.sample(sets, dice.choice((1, 1, len(sets))))
        found["consumesCounters"] = [
            {
                "counterSet": one,
                "counters": {key: {"value": str(dice.randint(0, 3))} for key in dice.sample("mn", dice.choice((1, 2)))},
            }
            for one in taken
        ]
    if dice.random() < 0.12:
        found["taints"] = [{"key": "bad", "effect": dice.choice(("NoSchedule", "NoExecute", "None"))}]
    if shared and dice.random() < 0.7:
        found["allowMultipleAllocations"] = True
        found["capacity"] = {"mem": _capacity(dice)}
    elif dice.random() < 0.2:
        found["capacity"] = {"mem": {"value": str(dice.randint(1, 4))}}
    if dice.random() < 0.05:
        found["bindingConditions"] = ["ready"]
        found["bindingFailureConditions"] = ["failed"]
    return found


def _capacity(dice: random.Random) -> Document:
    most = dice.randint(2, 8)
    found: Document = {"value": str(most)}
    roll = dice.random()
    if roll < 0.3:
        found["requestPolicy"] = {"default": "1", "validValues": ["1", "2", "4"]}
    elif roll < 0.6:
        found["requestPolicy"] = {"default": "2", "validRange": {"min": "2", "max": str(most), "step": "2"}}
    return found


def _held(dice: random.Random, item: Document) -> list[Document]:
    found = []
    spec = item["spec"]
    for device in spec.get("devices", ()):
        if dice.random() > 0.2:
            continue
        one = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
        if device.get("allowMultipleAllocations"):
            one |= {"shareID": "11111111-1111-1111-1111-111111111111", "consumed": {"mem": str(dice.randint(1, 2))}}
        found.append(one)
    return found


def _request(dice: random.Random, hard: bool) -> Document:
    found: Document = {"deviceClassName": dice.choice(("any", "any", "a"))}
    if dice.random() < 0.12:
        found["allocationMode"] = "All"
    else:
        found |= {"allocationMode": "ExactCount", "count": dice.choice((1, 1, 2, 2, 3, 5 if hard else 3))}
    if dice.random() < 0.15:
        found["selectors"] = [{"cel": {"expression": 'device.driver == "b.example.com"'}}]
    if dice.random() < 0.15:
        found["tolerations"] = [{"key": "bad", "operator": "Exists"}]
    if dice.random() < 0.2:
        found["capacity"] = {"requests": {"mem": str(dice.randint(1, 3))}}
    return found


def _claim(dice: random.Random, number: int, hard: bool) -> Document:
    requests: list[Document] = []
    refs: list[str] = []
    for at in range(dice.choice((1, 1, 2, 3))):
        name = f"r{at}"
        if dice.random() < 0.2:
            requests.append(
                {"name": name, "firstAvailable": [{"name": f"s{one}", **_request(dice, hard)} for one in range(2)]}
            )
            refs += [name, f"{name}/s0"]
        else:
            admin = {"adminAccess": True} if dice.random() < 0.08 else {}
            requests.append({"name": name, "exactly": {**_request(dice, hard), **admin}})
            refs.append(name)
    constraints = []
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        kind = dice.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
        over = dice.sample(refs, dice.randint(0, len(refs)))
        constraints.append({kind: f"a.example.com/{dice.choice('xy')}", **({"requests": over} if over else {})})
    devices: Document = {"requests": requests}
    if constraints:
        devices["constraints"] = constraints
    if dice.random() < 0.3:
        devices["config"] = [
            {
                "requests": dice.sample(refs, dice.randint(0, len(refs))),
                "opaque": {"driver": DRIVERS[0], "parameters": {"k": 1}},
            }
        ]
    return {"metadata": {"name": f"claim-{number}"}, "spec": {"devices": devices}}
