"""Reads `--where 'model=H100,memory>=40Gi,numa=same'` into what a claim asks of devices: CEL selectors and constraints.

The language: conditions parted by commas, all of which must hold. A condition is a name of `NAMES`, an operator and a
value: `=` and `!=` for every name, `>=` and `<=` for numbers, amounts and versions. A text or number may have several
values, `numa=0|1`, of which one is met. `NAME=same` asks that all devices
of the claim have one value. Blanks around each part do not count; a value holds no comma. A device that does not say
what a condition asks for does not meet it, whatever the operator. Names stand for what NVIDIA's driver publishes.
Pure. Values become literals of CEL, never code.
Source: dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/deviceinfo.go (attributes and capacity); CEL specification,
"Values" (string literals).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fairlead import errors
from fairlead.plan.claim.validate.request import SELECTORS_MOST
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource import device
from fairlead.wire.kubernetes.resource.request import (
    CELDeviceSelector,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
)
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaimSpec

DRIVER: Final = "gpu.nvidia.com"
"""NVIDIA's driver, and its class of whole GPUs."""
REQUEST: Final = "gpus"
"""Name of the one request of a claim that is made here, and the pod's name for the claim."""
REASON: Final = "WhereInvalid"
SAME: Final = "same"
_LONGEST: Final = 1024
"""Characters of all conditions."""
_LONGEST_VALUE: Final = 64
"""Bytes of an attribute's text: the API's limit, so that nothing longer matches."""
_CONDITION: Final = re.compile(r"(?P<name>[^=!<>]*)(?P<operator>!=|>=|<=|==|=|<|>)(?P<value>.*)", re.DOTALL)
_OPERATORS: Final = {"=": "==", "!=": "!=", ">=": ">=", "<=": "<="}
_VERSION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}")
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_ESCAPED: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Kind(enum.Enum):
    """How values of a name compare."""

    TEXT = "text"
    WORDS = "words of a text"
    """One or more whole words, in any case: `H100` is in `NVIDIA H100 80GB HBM3`, and `A10` not in `NVIDIA A100`."""
    NUMBER = "a whole number"
    VERSION = "a version"
    AMOUNT = "an amount"
    """A capacity: it cannot be the same for all devices by a constraint."""


class Name(NamedTuple):
    """What a name of a condition stands for."""

    domain: str
    id: str
    kind: Kind
    example: str

    @property
    def qualified(self) -> str:
        """Return its name as constraints have it."""
        return f"{self.domain}/{self.id}"


def _standard(qualified: str, kind: Kind, example: str) -> Name:
    domain, _, id_ = qualified.partition("/")
    return Name(domain, id_, kind, example)


NAMES: Final[Mapping[str, Name]] = {
    "model": Name(DRIVER, "productName", Kind.WORDS, "H100"),
    "product": Name(DRIVER, "productName", Kind.TEXT, "NVIDIA H100 80GB HBM3"),
    "brand": Name(DRIVER, "brand", Kind.TEXT, "Nvidia"),
    "architecture": Name(DRIVER, "architecture", Kind.TEXT, "Hopper"),
    "type": Name(DRIVER, "type", Kind.TEXT, "gpu"),
    "profile": Name(DRIVER, "profile", Kind.TEXT, "1g.10gb"),
    "uuid": Name(DRIVER, "uuid", Kind.TEXT, "GPU-88535201-…"),
    "parent": Name(DRIVER, "parentUUID", Kind.TEXT, "GPU-88535201-…"),
    "compute": Name(DRIVER, "cudaComputeCapability", Kind.VERSION, "9.0"),
    "driver": Name(DRIVER, "driverVersion", Kind.VERSION, "580.126.20"),
    "cuda": Name(DRIVER, "cudaDriverVersion", Kind.VERSION, "13.0"),
    "numa": _standard(device.NUMA_NODE, Kind.NUMBER, "0"),
    "pci": _standard(device.PCI_BUS_ID, Kind.TEXT, "0000:1b:00.0"),
    "pcie": _standard(device.PCIE_ROOT, Kind.TEXT, "pci0000:00"),
    "memory": Name(DRIVER, "memory", Kind.AMOUNT, "40Gi"),
    "multiprocessors": Name(DRIVER, "multiprocessors", Kind.AMOUNT, "100"),
    "decoders": Name(DRIVER, "decoders", Kind.AMOUNT, "1"),
    "encoders": Name(DRIVER, "encoders", Kind.AMOUNT, "1"),
}
"""Every name, and what it stands for; the help and the page of the documentation list the same."""


@dataclass(frozen=True, slots=True)
class Where:
    """What is asked of devices."""

    selectors: tuple[str, ...] = ()
    """CEL expressions, all of which must hold."""
    same: tuple[str, ...] = ()
    """Attributes by their qualified names, of which all devices have one value."""


def parse(text: str) -> Where:
    """Return what conditions ask for. Raises: Invalid (`WhereInvalid`), with the condition that is wrong."""
    if len(text) > _LONGEST:
        raise _invalid(f"it has {len(text)} characters, the limit is {_LONGEST}", "ask for less at once")
    selectors, same = dict[str, None](), dict[str, None]()
    for condition in text.split(",") if text.strip() else ():
        name, operator, value = _parts(condition)
        if value == SAME:
            same[_same(condition, name, operator)] = None
        else:
            selectors[_selector(condition, name, operator, value)] = None
    if len(selectors) > SELECTORS_MOST:
        raise _invalid(f"it has {len(selectors)} conditions, the limit is {SELECTORS_MOST}", "ask for less at once")
    return Where(selectors=tuple(selectors), same=tuple(same))


def claim_spec(count: int, device_class: str, where: Where) -> ResourceClaimSpec:
    """Return what a claim asks for: devices of a class, which meet conditions."""
    exactly = ExactDeviceRequest(
        device_class_name=device_class or DRIVER,
        count=count,
        selectors=tuple(DeviceSelector(cel=CELDeviceSelector(expression=one)) for one in where.selectors),
    )
    constraints = tuple(DeviceConstraint(requests=(REQUEST,), match_attribute=name) for name in where.same)
    request = DeviceRequest(name=REQUEST, exactly=exactly)
    return ResourceClaimSpec(devices=DeviceClaim(requests=(request,), constraints=constraints))


def literal(text: str) -> str:
    """Return a text as a string literal of CEL: whatever it holds stays text."""
    return '"' + "".join(_ESCAPED.get(one, one if one.isprintable() else _code(one)) for one in text) + '"'


def _code(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _parts(condition: str) -> tuple[Name, str, str]:
    found = _CONDITION.fullmatch(condition)
    if found is None:
        raise _wrong(condition, "it has no operator", "NAME=VALUE, NAME!=VALUE, NAME>=VALUE, NAME<=VALUE or NAME=same")
    word, operator, value = found["name"].strip(), found["operator"], found["value"].strip()
    if operator not in _OPERATORS:
        near = {"==": "=", "<": "<=", ">": ">="}[operator]
        raise _wrong(condition, f'"{operator}" is not an operator', f"write {near}")
    if word not in NAMES:
        near = errors.closest(word[:_LONGEST_VALUE], NAMES)
        hint = f"did you mean {near}?" if near else f"one of {', '.join(NAMES)}"
        raise _wrong(condition, f'there is no name "{word}"', hint)
    name = NAMES[word]
    if not value:
        raise _wrong(condition, "it has no value", f"for example {word}={name.example}")
    parts = value.split("|") if name.kind in {Kind.TEXT, Kind.NUMBER} else [value]
    if max(len(one.encode("utf-8", "surrogatepass")) for one in parts) > _LONGEST_VALUE:
        raise _wrong(condition, f"its value is longer than an attribute ({_LONGEST_VALUE} bytes)", "shorten it")
    if bad := next((one for one in value if not one.isprintable()), ""):
        raise _wrong(condition, f"its value holds the character {bad!a}", "no attribute has such a one")
    return name, operator, value


def _same(condition: str, name: Name, operator: str) -> str:
    if operator != "=":
        raise _wrong(condition, f'"{SAME}" goes with = alone', f"write NAME={SAME}, or leave it out")
    if name.kind is Kind.AMOUNT:
        hint = "model=same gives devices of one model"
        raise _wrong(condition, "an amount cannot be asked to be the same", hint)
    return name.qualified


def _selector(condition: str, name: Name, operator: str, value: str) -> str:
    """Return a condition as an expression that is false, and never fails, where a device does not say what it asks."""
    place = "capacity" if name.kind is Kind.AMOUNT else "attributes"
    of_domain = f"device.{place}[{literal(name.domain)}]"
    is_there = f"{literal(name.id)} in {of_domain}"
    return f"{is_there} && {_EXPRESSIONS[name.kind](condition, f'{of_domain}.{name.id}', operator, value)}"


def _text(condition: str, found: str, operator: str, value: str) -> str:
    if operator not in {"=", "!="}:
        raise _wrong(condition, "texts are equal or not", "write = or !=")
    if "|" in value:
        return _among(found, operator, ", ".join(literal(one.strip()) for one in value.split("|")))
    return f"{found} {_OPERATORS[operator]} {literal(value)}"


def _among(found: str, operator: str, listed: str) -> str:
    """Return that a value is one of several, or none of them."""
    return f"{'!' if operator == '!=' else ''}({found} in [{listed}])"


def _words(condition: str, found: str, operator: str, value: str) -> str:
    if operator not in {"=", "!="}:
        raise _wrong(condition, "words are there or not", "write = or !=")
    pattern = "".join(one if one.isalnum() else f"[{one}]" if one in " -_" else f"\\{one}" for one in value)
    if not value.isascii():
        raise _wrong(
            condition, "a model's name is of ASCII letters, digits and marks", "product=NAME compares whole names"
        )
    return f"{'!' if operator == '!=' else ''}{found}.matches({literal(f'(?i)(^|[ -]){pattern}($|[ -])')})"


def _number(condition: str, found: str, operator: str, value: str) -> str:
    if "|" in value and operator in {"=", "!="} and all(_WHOLE.fullmatch(one.strip()) for one in value.split("|")):
        return _among(found, operator, ", ".join(str(int(one)) for one in value.split("|")))
    if not _WHOLE.fullmatch(value):
        raise _wrong(condition, "its value is not a whole number", "for example numa=0")
    return f"{found} {_OPERATORS[operator]} {int(value)}"


def _version(condition: str, found: str, operator: str, value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise _wrong(condition, "its value is not a version", "for example compute>=9.0")
    parts = [str(int(one)) for one in value.split(".")]
    full = ".".join([*parts, "0", "0"][:3])
    return f"{found}.compareTo(semver({literal(full)})) {_OPERATORS[operator]} 0"


def _amount(condition: str, found: str, operator: str, value: str) -> str:
    try:
        known = quantity.parse(value)
    except errors.FairleadError as error:
        raise _wrong(condition, "its value is not an amount", "for example memory>=40Gi") from error
    return f"{found}.compareTo(quantity({literal(str(known))})) {_OPERATORS[operator]} 0"


_EXPRESSIONS: Final[Mapping[Kind, Callable[[str, str, str, str], str]]] = {
    Kind.TEXT: _text,
    Kind.WORDS: _words,
    Kind.NUMBER: _number,
    Kind.VERSION: _version,
    Kind.AMOUNT: _amount,
}


def described() -> Iterator[tuple[str, str, str]]:
    """Yield each name, what it stands for, and an example."""
    for word, name in NAMES.items():
        operator = "=" if name.kind in {Kind.TEXT, Kind.WORDS, Kind.NUMBER} else ">="
        yield word, name.qualified, f"{word}{operator}{name.example}"


def _wrong(condition: str, problem: str, hint: str) -> errors.Invalid:
    return _invalid(f'"{condition.strip()}": {problem}', hint)


def _invalid(problem: str, hint: str) -> errors.Invalid:
    return errors.Invalid(f"--where {problem}".replace("\0", "\\0"), reason=REASON, hint=hint)
