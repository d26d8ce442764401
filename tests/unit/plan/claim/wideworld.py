"""Makes random clusters and claims that use more of the API than `randomworld`, for the reference's own program.

A world of `randomworld` is taken and changed: selectors of many kinds, some of which fail, quantities, versions and
lists as attributes, taints with values, admin access, alternatives, shares, request policies, binding conditions,
counters over two sets, compatibility groups and derived attributes.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

from tests.unit.plan.claim import randomworld

Document = dict[str, Any]
A, B = randomworld.DRIVERS
_AMOUNTS = ("1", "2", "1500m", "500m", "1Ki", "2Ki", "2048", "3k", "1e1", "4", "0", "1Gi", "0.5")
_VERSIONS = ("1.0.0", "1.2.3", "2.0.0-rc1", "2.0.0", "10.0.0", "1.2.3+build")
_EFFECTS = ("NoSchedule", "NoExecute", "None")
Dice = random.Random


def make(dice: Dice, *, lists: bool = False, hard: bool = False, derived: bool = False) -> Document:
    """Return slices, classes, claims, what is held and the gates that are on."""
    world = randomworld.make(dice, lists=lists, hard=hard or dice.random() < 0.7)
    groups = lists and dice.random() < 0.3
    for item in world["slices"]:
        for device in item["spec"].get("devices", ()):
            _widen_device(dice, device, item["spec"]["driver"], lists=lists, groups=groups)
        for one in item["spec"].get("sharedCounters", ()):
            _widen_counters(dice, one["counters"])
    for claim in world["claims"]:
        _widen_claim(dice, claim["spec"]["devices"], lists=lists, derived=derived)
    world["classes"] += [
        {"metadata": {"name": "wide"}, "spec": {"selectors": [_cel(expression(dice, lists=lists))]}},
        {"metadata": {"name": "bare"}, "spec": {}},
    ]
    world["held"] = _held(dice, world)
    return {**world, "derived": derived, "groups": groups, "ranges": lists and dice.random() < 0.5}


def _cel(text: str) -> Document:
    return {"cel": {"expression": text}}


def _widen_device(dice: Dice, device: Document, driver: str, *, lists: bool, groups: bool) -> None:
    attributes = device["attributes"]
    for name, value in (
        ("v", {"version": dice.choice(_VERSIONS)}),
        ("n", {"int": dice.randint(-2, 5)}),
        ("f", {"bool": dice.random() < 0.5}),
        ("other.example.com/t", {"string": dice.choice(("", "tree", "Tree", "a-b-c"))}),
    ):
        if dice.random() < 0.7:
            attributes[name] = value
    if lists and dice.random() < 0.4:
        attributes["l"] = dice.choice(
            (
                {"ints": [1, 2]},
                {"versions": ["1.0.0", "2.0.0"]},
                {"bools": [True]},
                {"strings": ["p"]},
                {"strings": ["q", "r"]},
            )
        )
    _widen_capacity(dice, device)
    if "consumesCounters" in device:
        for used in device["consumesCounters"]:
            for counter in used["counters"].values():
                counter["value"] = dice.choice((counter["value"], counter["value"], "500m", "1Ki", "0"))
            if groups and dice.random() < 0.7:
                used["compatibilityGroups"] = sorted(dice.sample("gh", dice.randint(1, 2)))
    if dice.random() < 0.2:
        device["taints"] = [
            {
                "key": dice.choice(("bad", "worse")),
                "value": dice.choice(("", "v", "w")),
                "effect": dice.choice(_EFFECTS),
            }
            for _ in range(dice.choice((1, 1, 2)))
        ]
    if dice.random() < 0.05:
        device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
        device |= {"bindsToNode": True} if dice.random() < 0.5 else {}


def _widen_capacity(dice: Dice, device: Document) -> None:
    if "capacity" in device and dice.random() < 0.4:
        device["capacity"]["mem"] = _capacity(dice)
    if dice.random() < 0.3:
        device.setdefault("capacity", {})["cores"] = _capacity(dice)
    if dice.random() < 0.1:
        device["allowMultipleAllocations"] = dice.random() < 0.8


def _capacity(dice: Dice) -> Document:
    """Return a capacity whose policy an API server would store: its default is one of its own amounts."""
    found: Document = {"value": dice.choice(("4", "8", "4Ki", "10k", "2500m", "3"))}
    roll = dice.random()
    if roll < 0.25:
        values = sorted(dice.sample(("500m", "1", "2", "3", "4"), dice.randint(1, 3)), key=_plain)
        found["requestPolicy"] = {"default": dice.choice(values), "validValues": values}
    elif roll < 0.6:
        least = dice.choice(("1", "500m", "0", "2"))
        within: Document = {"min": least}
        within |= {"max": dice.choice(("4", "8", "1Ki"))} if dice.random() < 0.6 else {}
        within |= {"step": dice.choice(("1", "2", "500m", "250m", "3"))} if dice.random() < 0.6 else {}
        found["requestPolicy"] = {"default": least, "validRange": within}
    elif roll < 0.7:
        found["requestPolicy"] = {"default": dice.choice(("1", "2", "500m", "1Ki"))}
    return found


def _plain(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _widen_counters(dice: Dice, counters: Document) -> None:
    for counter in counters.values():
        if dice.random() < 0.2:
            counter["value"] = dice.choice(("2500m", "1Ki", "3", "10k"))


def _held(dice: Dice, world: Document) -> list[Document]:
    """Return what is held, some of it several times and in more than one capacity."""
    every = [
        (item["spec"]["driver"], item["spec"]["pool"]["name"], device["name"], device)
        for item in world["slices"]
        for device in item["spec"].get("devices", ())
    ]
    # Two devices of one name, of which one is shared, are another case, with an answer of ours.
    names = collections.Counter(one[:3] for one in every)
    shared = {one[:3]: one[3] for one in every if names[one[:3]] == 1}
    found = []
    for number, one in enumerate(world["held"]):
        device = shared.get((one["driver"], one["pool"], one["device"]))
        if device is None:
            continue
        name = {key: one[key] for key in ("driver", "pool", "device")}
        if not device.get("allowMultipleAllocations"):
            found.append(name)
            continue
        for share in range(dice.choice((1, 1, 2))):
            amounts = {
                key: dice.choice(("1", "500m", "2")) for key in device.get("capacity", ()) if dice.random() < 0.8
            }
            identity = f"11111111-1111-1111-1111-{number:06}{share:06}"
            found.append({**name, "shareID": identity, **({"consumed": amounts} if amounts else {})})
    return found


def _widen_claim(dice: Dice, devices: Document, *, lists: bool, derived: bool) -> None:
    for request in devices["requests"]:
        for one in [request["exactly"]] if "exactly" in request else request["firstAvailable"]:
            _widen_request(dice, one, lists=lists)
        if "firstAvailable" in request and dice.random() < 0.4:
            more = dict(request["firstAvailable"][0])
            count = {"allocationMode": "ExactCount", "count": dice.choice((1, 4, 30, 33))}
            request["firstAvailable"].append({**more, **count, "name": "s2"})
    for one in devices.get("constraints", ()):
        for kind in ("matchAttribute", "distinctAttribute"):
            if kind in one and dice.random() < 0.4:
                name = dice.choice(("n", "v", "f", "l"))
                one[kind] = dice.choice((f"{A}/{name}", f"{B}/x", "other.example.com/t", f"{A}/missing"))
    if derived and devices.get("constraints"):
        _derive(dice, devices, lists=lists)


def _widen_request(dice: Dice, one: Document, *, lists: bool) -> None:
    if dice.random() < 0.3:
        one["selectors"] = [_cel(expression(dice, lists=lists)) for _ in range(dice.choice((1, 1, 1, 2)))]
    if dice.random() < 0.25:
        one["deviceClassName"] = dice.choice(("wide", "bare", "any", "absent" if dice.random() < 0.1 else "any"))
    if dice.random() < 0.25:
        one["tolerations"] = [_toleration(dice) for _ in range(dice.choice((1, 1, 2)))]
    if dice.random() < 0.2:
        names = dice.sample(("mem", "cores"), dice.choice((1, 1, 2)))
        one["capacity"] = {"requests": {name: dice.choice(_AMOUNTS) for name in names}}
    if one.get("count", 0) > 2 and dice.random() < 0.6:
        one["count"] = dice.choice((1, 1, 2))
    if dice.random() < 0.05:
        one.pop("count", None)
        one["allocationMode"] = "All"


def _toleration(dice: Dice) -> Document:
    key = dice.choice(("bad", "worse", ""))
    operator = "Exists" if not key else dice.choice(("Exists", "Equal"))
    found: Document = {"key": key, "operator": operator}
    if operator != "Exists":
        found["value"] = dice.choice(("", "v"))
    if dice.random() < 0.4:
        found["effect"] = dice.choice(_EFFECTS[:2])
    return found


def _derive(dice: Dice, devices: Document, *, lists: bool) -> None:
    """Let requests compute some of the attributes that constraints read."""
    used = [one.get("matchAttribute") or one["distinctAttribute"] for one in devices["constraints"]]
    for request in devices["requests"]:
        for one in [request["exactly"]] if "exactly" in request else request["firstAvailable"]:
            if dice.random() < 0.6:
                names = sorted(set(dice.sample(used, dice.randint(1, len(used)))))
                kinds = _DERIVED_LISTS if lists else _DERIVED
                one["derivedAttributes"] = [
                    {"name": name, "expression": dice.choice(_DERIVED_FAILING if dice.random() < 0.05 else kinds)}
                    for name in names
                ]


_DERIVED = (
    "device.driver",
    f'device.attributes["{A}"].?x.orValue("none")',
    f'device.attributes["{A}"].?n.orValue(0) > 2',
    f'device.attributes["{A}"].?n.orValue(0) % 2',
    f'device.attributes["{A}"].?v.orValue(semver("1.0.0"))',
    'semver("2.0", true)',
    f'"mem" in device.capacity["{A}"] ? "large" : "small"',
    f'"mem" in device.capacity["{A}"] ? device.capacity["{A}"].mem.compareTo(quantity("4")) : 7',
    f'device.attributes["{A}"].?v.orValue(semver("1.0.0")).major()',
    '"constant"',
)
_DERIVED_LISTS = (
    *_DERIVED,
    '["p", "q"]',
    f'[dyn(device.attributes["{A}"].?n.orValue(0)), 2]',
    "[1].filter(one, one > 1)",
    f'device.attributes["{A}"].?l.orValue(["p"])',
)
_DERIVED_FAILING = (
    f'device.attributes["{A}"].x',
    f'device.capacity["{A}"].mem.asInteger()',
    f'[1, device.attributes["{A}"].?x.orValue("p")]',
    "1.5",
)


def expression(dice: Dice, *, lists: bool) -> str:
    """Return a selector, seldom one that fails on some devices or on all."""
    kinds = (*_KINDS, *_LIST_KINDS) if lists else _KINDS
    first = _FAILING if dice.random() < 0.04 else kinds
    text = dice.choice(first)(dice)
    roll = dice.random()
    if roll < 0.1:
        return f"{text} || {dice.choice(kinds)(dice)}"
    if roll < 0.2:
        return f"{text} && {dice.choice(kinds)(dice)}"
    return f"!({text})" if roll < 0.25 else text


def _domain(dice: Dice) -> str:
    return f'device.attributes["{dice.choice((A, A, A, B))}"]'


Kind = Callable[[Dice], str]
_KINDS: tuple[Kind, ...] = (
    lambda _: "true",
    lambda dice: f'device.driver in ["{A}", "{dice.choice((B, "c.example.com"))}"]',
    lambda dice: f'device.driver == "{dice.choice((A, B))}"',
    lambda dice: f'"x" in {_domain(dice)} && {_domain(dice)}.?x.orValue("") == "{dice.choice("pq")}"',
    lambda dice: f'{_domain(dice)}.?x.orValue("none") != "{dice.choice("pq")}"',
    lambda dice: f"has({_domain(dice)}.n) && {_domain(dice)}.?n.orValue(0) >= {dice.randint(-1, 4)}",
    lambda dice: f"{_domain(dice)}.?n.orValue({dice.randint(0, 3)}) in [0, 1, {dice.randint(2, 5)}]",
    lambda dice: f"{_domain(dice)}.?f.orValue({dice.choice(('true', 'false'))})",
    lambda dice: f'{_domain(dice)}.?v.orValue(semver("1.0.0")).isGreaterThan(semver("{dice.choice(_VERSIONS[:4])}"))',
    lambda dice: f'{_domain(dice)}.?v.orValue(semver("1.0.0")).compareTo(semver("1.2.3")) <= {dice.choice((-1, 0))}',
    lambda dice: f'{_domain(dice)}.?v.orValue(semver("1.0.0")).major() == {dice.choice((1, 2, 10))}',
    lambda dice: (
        f'device.capacity["{A}"].?mem.orValue(quantity("0")).compareTo(quantity("{dice.choice(_AMOUNTS)}")) >= 0'
    ),
    lambda dice: (
        f'"cores" in device.capacity["{A}"] && '
        f'device.capacity["{A}"].?cores.orValue(quantity("1")).isGreaterThan(quantity("{dice.choice(_AMOUNTS)}"))'
    ),
    lambda dice: f'device.attributes["other.example.com"].?t.orValue("").matches("^[a-z-]{{{dice.randint(0, 4)},}}$")',
    lambda dice: f'device.attributes["other.example.com"].?t.orValue("").lowerAscii().contains("{dice.choice("te-")}")',
    lambda dice: f'device.attributes["other.example.com"].?t.orValue("").split("-").size() > {dice.choice((1, 2))}',
    lambda _: 'device.attributes["absent.example.com"].size() == 0',
    lambda dice: f"device.allowMultipleAllocations == {dice.choice(('true', 'false'))}",
    lambda dice: f'cel.bind(d, {_domain(dice)}, d.?x.orValue("") == d.?y.orValue("{dice.choice("pq")}"))',
    lambda dice: f'["x", "y", "n"].{dice.choice(("all", "exists", "exists_one"))}(name, name in {_domain(dice)})',
    lambda dice: f"{_domain(dice)}.size() > {dice.randint(1, 4)}",
    lambda dice: f"dyn({_domain(dice)}.?n.orValue(1)) == {dice.choice(('1.0', '2u', '1'))}",
)
_LIST_KINDS: tuple[Kind, ...] = (
    lambda dice: f'{_domain(dice)}.?l.orValue(["p"]).includes("{dice.choice("pqr")}")',
    lambda dice: f'{_domain(dice)}.?x.orValue("p").includes("{dice.choice("pqr")}")',
    lambda dice: f"{_domain(dice)}.?n.orValue(0).includes({dice.randint(0, 3)})",
)
_FAILING: tuple[Kind, ...] = (
    lambda dice: f'{_domain(dice)}.{dice.choice("xyv")} == "p"',
    lambda dice: f"{_domain(dice)}.n > {dice.randint(0, 3)}",
    lambda _: f'device.capacity["{A}"].mem.isGreaterThan(quantity("1"))',
    lambda _: 'quantity("one").isInteger()',
    lambda dice: f"{_domain(dice)}.x",
    lambda _: "device.attributes[",
    lambda _: "device.capacity",
)
