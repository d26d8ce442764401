"""Answers claims by trying everything, straight from the documents, with rules written down a second time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

Document = dict[str, Any]


class Offer(NamedTuple):
    """A device of the node."""

    driver: str
    pool: str
    document: Document
    slice: Document

    @property
    def name(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.document["name"]


class Given(NamedTuple):
    """A device given to an alternative of a request."""

    claim: int
    request: str
    label: str
    wanted: Document
    offer: Offer


class World:
    """One random world."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._classes = {one["metadata"]["name"]: one["spec"] for one in document["classes"]}
        self.offers = list(self._offers())
        self._held = {(one["driver"], one["pool"], one["device"]): one for one in document["held"]}

    def _offers(self) -> Iterator[Offer]:
        pools: dict[tuple[str, str], list[Document]] = {}
        for item in self._document["slices"]:
            spec = item["spec"]
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(item)
        for (driver, name), slices in sorted(pools.items()):
            for item in self.current(slices):
                for device in item["spec"].get("devices", ()):
                    if self._is_here(item["spec"], device):
                        yield Offer(driver, name, device, item)

    def current(self, slices: Sequence[Document]) -> list[Document]:
        """Return the slices of a pool that count, in their order; none where not all of them are there."""
        # Slices that name the node come first, and the first one says how many there are.
        slices = sorted(slices, key=lambda item: not item["spec"].get("nodeName"))
        here = [item for item in slices if self._is_relevant(item["spec"])]
        if not here:
            return []
        latest = max(item["spec"]["pool"]["generation"] for item in here)
        of = [item for item in slices if item["spec"]["pool"]["generation"] == latest]
        said = next(one for one in here if one["spec"]["pool"]["generation"] == latest)
        count = said["spec"]["pool"]["resourceSliceCount"]
        is_old = any(item["spec"]["pool"]["generation"] > latest for item in slices)
        own = [item for item in here if item in of]
        if len(own) == count:
            return own
        return of if len(of) == count and not is_old else []

    def _is_relevant(self, spec: Document) -> bool:
        if spec.get("perDeviceNodeSelection"):
            return any(self._is_here(spec, one) for one in spec["devices"])
        return self._is_here(spec, spec)

    def _is_here(self, spec: Document, device: Document) -> bool:
        where = device if spec.get("perDeviceNodeSelection") else spec
        if where.get("nodeName"):
            return bool(where["nodeName"] == "node-1")
        selector = where.get("nodeSelector")
        if selector:
            return bool(selector["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["a"])
        return bool(where.get("allNodes"))

    def answers(self) -> Iterator[list[Given]]:
        """Yield every answer."""
        requests = [
            (claim, one)
            for claim, item in enumerate(self._document["claims"])
            for one in item["spec"]["devices"]["requests"]
        ]
        yield from self._extend([], requests)

    def _extend(self, given: list[Given], requests: Sequence[tuple[int, Document]]) -> Iterator[list[Given]]:
        if not requests:
            yield given
            return
        (claim, request), rest = requests[0], requests[1:]
        for label, wanted in alternatives(request):
            usable = [one for one in self.offers if self._is_wanted(wanted, one)]
            if wanted["allocationMode"] == "All":
                fits = [one for one in usable if self._has_capacity(wanted, one)]
                choices: Iterator[Any] = iter([fits] if fits else [])
            else:
                choices = itertools.combinations(usable, wanted["count"])
            for chosen in choices:
                more = [*given, *(Given(claim, request["name"], label, wanted, one) for one in chosen)]
                if self.is_valid(more):
                    yield from self._extend(more, rest)

    def _is_wanted(self, wanted: Document, offer: Offer) -> bool:
        selectors = [*self._classes[wanted["deviceClassName"]]["selectors"], *wanted.get("selectors", ())]
        return all(_holds(one["cel"]["expression"], offer) for one in selectors)

    def _has_capacity(self, wanted: Document, offer: Offer) -> bool:
        amount = consumed(wanted, offer)
        return amount is not None and all(
            value <= Fraction(offer.document["capacity"][name]["value"]) for name, value in amount.items()
        )

    def is_valid(self, given: Sequence[Given]) -> bool:
        """Return whether devices can be given together."""
        return (
            all(self._is_free(one, given) for one in given)
            and all(_tolerated(one) for one in given)
            and self._fits_capacity(given)
            and self._fits_counters(given)
            and all(
                _constrained(constraint, [one for one in given if one.claim == claim])
                for claim, item in enumerate(self._document["claims"])
                for constraint in item["spec"]["devices"].get("constraints", ())
            )
            and all(sum(one.claim == claim for one in given) <= 32 for claim in range(len(self._document["claims"])))
        )

    def _is_free(self, one: Given, given: Sequence[Given]) -> bool:
        is_shared = one.offer.document.get("allowMultipleAllocations")
        if is_shared:
            return True
        others = [each for each in given if each is not one and each.offer.name == one.offer.name]
        if one.wanted.get("adminAccess"):
            return not any(each.claim == one.claim for each in others)
        # An ordinary request gets no device that the pod took before it.
        before = [each for each in others if given.index(each) < given.index(one)]
        return not before and one.offer.name not in self._held and not any(each.claim == one.claim for each in others)

    def _fits_capacity(self, given: Sequence[Given]) -> bool:
        used: dict[tuple[Any, str], Fraction] = {}
        for one in given:
            amounts = consumed(one.wanted, one.offer)
            if amounts is None:
                return False
            for name, value in amounts.items():
                key = (one.offer.name, name)
                own = value if one.offer.document.get("allowMultipleAllocations") else Fraction(0)
                used[key] = used.get(key, Fraction(0)) + own
                held = Fraction((self._held.get(one.offer.name, {}).get("consumed") or {}).get(name, 0))
                if max(used[key], value) + held > Fraction(one.offer.document["capacity"][name]["value"]):
                    return False
        return True

    def _fits_counters(self, given: Sequence[Given]) -> bool:
        devices = {one.offer.name: one.offer for one in given if not one.wanted.get("adminAccess")}
        # A share of a device that is shared already takes no counters again.
        taking = [
            one for one in devices.values() if one.document.get("consumesCounters") and one.name not in self._held
        ]
        for driver, pool in {(one.driver, one.pool) for one in taking}:
            slices = [
                item
                for item in self._document["slices"]
                if (item["spec"]["driver"], item["spec"]["pool"]["name"]) == (driver, pool)
            ]
            named, slices = slices, self.current(slices)
            generation = slices[0]["spec"]["pool"]["generation"]
            known = {
                (driver, pool, one["name"])
                for item in named
                if item["spec"]["pool"]["generation"] == generation
                for one in item["spec"].get("devices", ())
            }
            every = {(driver, pool, one["name"]): one for item in slices for one in item["spec"].get("devices", ())}
            if any(name not in known for name in self._held if name[:2] == (driver, pool)):
                return False  # a held device that is gone: nobody knows what it takes
            using = {name: every[name] for name in every if name in self._held or name in devices}
            for item in slices:
                for counters in item["spec"].get("sharedCounters", ()):
                    for name, counter in counters["counters"].items():
                        taken = sum(
                            Fraction(used["counters"].get(name, {"value": "0"})["value"])
                            for one in using.values()
                            for used in one.get("consumesCounters", ())
                            if used["counterSet"] == counters["name"]
                        )
                        if taken > Fraction(counter["value"]):
                            return False
        return True


def alternatives(request: Document) -> list[tuple[str, Document]]:
    """Return the alternatives of a request, by label."""
    if "exactly" in request:
        return [(request["name"], request["exactly"])]
    return [(f"{request['name']}/{one['name']}", one) for one in request["firstAvailable"]]


def consumed(wanted: Document, offer: Offer) -> dict[str, Fraction] | None:
    """Return what a request consumes of a device; None: the device does not do."""
    requests = wanted.get("capacity", {}).get("requests", {})
    capacity = offer.document.get("capacity", {})
    if any(name not in capacity for name in requests):
        return None
    found = {}
    for name, one in capacity.items():
        policy = one.get("requestPolicy", {})
        amount = Fraction(requests.get(name, policy.get("default", one["value"])))
        if "validValues" in policy and name in requests:
            amount = min((Fraction(each) for each in policy["validValues"] if Fraction(each) >= amount), default=amount)
        if "validRange" in policy:
            low, step = Fraction(policy["validRange"]["min"]), Fraction(policy["validRange"]["step"])
            amount = low if amount < low else low + -(-(amount - low) // step) * step
            if amount > Fraction(policy["validRange"]["max"]):
                return None
        if amount > Fraction(one["value"]) or amount == 0:
            return None
        found[name] = amount
    return found


def _holds(expression: str, offer: Offer) -> bool:
    return expression == "true" or offer.driver == expression.split('"')[1]


def _tolerated(one: Given) -> bool:
    tolerates = bool(one.wanted.get("tolerations"))
    return tolerates or all(taint["effect"] == "None" for taint in one.offer.document.get("taints", ()))


def values_of(name: str, offer: Offer) -> set[Any] | None:
    """Return what a device has for an attribute; None: nothing."""
    attributes = offer.document["attributes"]
    domain, _, short = name.partition("/")
    found = attributes.get(name) or (attributes.get(short) if domain == offer.driver else None)
    if not found:
        return None
    ((kind, value),) = found.items()
    return {(kind.rstrip("s"), each) for each in value} if isinstance(value, list) else {(kind, value)}


def _constrained(constraint: Document, given: Sequence[Given]) -> bool:
    over = constraint.get("requests")
    bound = [one for one in given if not over or one.request in over or one.label in over]
    name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    values = [found for one in bound if (found := values_of(name, one.offer)) is not None]
    if len(values) < len(bound):
        return False
    if "matchAttribute" in constraint:
        return not values or bool(set.intersection(*values))
    return all(not one & other for one, other in itertools.combinations(values, 2))
