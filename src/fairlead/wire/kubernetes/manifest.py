"""Parses manifests as people write them, YAML (several documents) or JSON, into typed objects.

The text comes from tenants: depth and size are bounded before anything is built, aliases are counted as often as they
are used, keys may not repeat. Errors name the field by its path, as in
`spec.containers[0].resources.limits["nvidia.com/gpu"]`.
Fields that a kind has on a cluster and that nothing here reads are kept in the raw document and listed as `ignored`, so
that a caller can warn. What values mean (quantities, names) is decided by who admits the object.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml

from fairlead import errors
from fairlead.wire.kubernetes import core, meta, unread
from fairlead_cdi import yamlfile

LARGEST_BYTES: Final = 3 * 1024 * 1024
"""What an API server takes as one request."""
_LARGEST_NODES: Final = 200_000
LARGEST_DUMP: Final = 64 << 20
"""Bytes of what a person has of a whole cluster, in a file."""
_DEEPEST: Final = yamlfile.DEEPEST

KNOWN: Final[tuple[type[meta.Object], ...]] = (core.Pod, core.Namespace, core.Node, core.Event)

_WHOLE: Final = "fairlead.wire.kubernetes.resource."
"""Modules whose classes have every field that Kubernetes has."""
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]|(\[\.\.\.\])")
_WORDS: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "a boolean",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One object of a manifest."""

    item: meta.Object
    document: Mapping[str, Any]
    """As written, without nulls."""
    ignored: tuple[str, ...]
    """Paths of fields that nothing here reads, in the order written."""
    wrong: tuple[str, ...] = ()
    """Those of them that may not be left out, or that Kubernetes does not have, each with what is wrong."""


class _Loader(yaml.CSafeLoader):
    """Plain values only: dates stay text, as in Kubernetes, and a key that repeats is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base declares it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a map. Raises: yaml.constructor.ConstructorError: a key repeats, or merges other maps in."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":  # a few lines of them can fill the memory
                raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not supported", key.start_mark)
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f'key "{key.value}" already set', key.start_mark)
            seen |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
        return super().construct_mapping(node, deep=deep)


def parse(data: str | bytes, *, kinds: tuple[type[meta.Object], ...] = KNOWN) -> tuple[Manifest, ...]:
    """Read every object of a manifest, in order; items of a `List` count as objects, empty documents do not.

    Raises: RequestError: not a manifest, or a kind that is not in `kinds`; Invalid: a field has the wrong type.
    """
    text = _text(data)
    found = [_parse_one(item, place, kinds) for place, item in _objects(_load(text))]
    if not found:
        raise errors.RequestError("the manifest holds no object", reason="ManifestEmpty", hint=_example(kinds))
    return tuple(found)


def documents(data: str | bytes) -> tuple[tuple[str, Any], ...]:
    """Return every object of a dump as it is written, with its place in it, whatever its kind; lists count by items.

    An item of a list that is not a map comes back as it is: reading it says what is wrong.

    Raises: RequestError: it is none, or larger than `LARGEST_DUMP`.
    """
    text = _text(data, LARGEST_DUMP)
    # Each value takes a byte: a document with more of them than that repeats a few by aliases.
    return tuple(_objects(_load(text), max(_LARGEST_NODES, len(text))))


def convert(document: Any, kinds: tuple[type[meta.Object], ...]) -> Manifest:
    """Read one object that was decoded already, as `parse` does.

    Raises: RequestError: not an object, or a kind that is not in `kinds`; Invalid: a field has the wrong type.
    """
    return _parse_one(_Copier().copy(document, ""), "", kinds)


def check_carried_out(found: Sequence[Manifest]) -> tuple[str, ...]:
    """Refuse fields that may not be left out, or that Kubernetes does not have.

    Returns: the paths of fields that are left out, each with its object's name where there are more.
    Raises:  Invalid.
    """
    if wrong := [problem for one in found for problem in one.wrong]:
        raise errors.Invalid("; ".join(wrong), reason="ManifestInvalid", problems=wrong)
    several = len(found) > 1
    return tuple((f"{one.item.metadata.name}: " if several else "") + path for one in found for path in one.ignored)


def _text(data: str | bytes, most: int = LARGEST_BYTES) -> str:
    if len(data) > most:
        raise _unreadable(f"it has {len(data)} bytes, the limit is {most}")
    try:
        return data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(f"it is not UTF-8: byte {error.start}") from error


def _load(text: str) -> list[Any]:
    if text.lstrip().startswith("{"):  # YAML would refuse the tabs that JSON allows
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass
    try:
        yamlfile.check_depth(text, _DEEPEST)
        return list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _unreadable(f"{error.problem}{where}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable(str(error).replace("\n", " ")) from error


def _objects(documents: list[Any], most: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    copier = _Copier(most)
    for number, document in enumerate(documents, 1):
        place = f"document {number}: " if len(documents) > 1 else ""
        plain = copier.copy(document, place)
        if plain is None:
            continue
        if not isinstance(plain, dict):
            raise _unreadable(f"{place}it is {_kind_of(plain)}, not a map with apiVersion and kind")
        if plain.get("kind") == "List" and isinstance(plain.get("items"), list):
            yield from ((f"{place}items[{at}]: ", item) for at, item in enumerate(plain["items"]))
        else:
            yield place, plain


class _Copier:
    """Copies JSON values without nulls in maps, which mean `not given`; refuses anything else by its path.

    Below `opaque.parameters` of a claim and `data` of its status nulls are values: a driver reads those documents.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = self._left = _LARGEST_NODES if most is None else most

    def copy(self, value: Any, place: str, *, path: str = "", depth: int = 0, is_opaque: bool = False) -> Any:
        """Return the copy. Raises: RequestError: too many values or too deep; Invalid: not a value of JSON."""
        self._left -= 1
        if self._left < 0:
            raise _unreadable(f"it has more than {self._most} values")
        if depth > _DEEPEST:
            raise _unreadable(f"it is nested deeper than {_DEEPEST} levels")
        if isinstance(value, dict):
            return self._copy_map(value, place, path=path, depth=depth, is_opaque=is_opaque)
        if isinstance(value, list):
            return [
                self.copy(child, place, path=f"{path}[{at}]", depth=depth + 1, is_opaque=is_opaque)
                for at, child in enumerate(value)
            ]
        if isinstance(value, float) and not math.isfinite(value):
            raise _invalid(place, path, f"{value} is not a number of JSON")
        if isinstance(value, str):
            return self._text(value, place, path)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise _invalid(place, path, f"a {type(value).__name__} is not a value of JSON")

    @staticmethod
    def _text(value: str, place: str, path: str) -> str:
        """Return the text if it is one. Raises: Invalid: it holds half a pair of UTF-16, as only an escape can say."""
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _invalid(place, path, f"{value[error.start]!a} is not a character", hint="write UTF-8") from error
        return value

    def _copy_map(self, value: dict[Any, Any], place: str, *, path: str, depth: int, is_opaque: bool) -> dict[str, Any]:
        copied = {}
        for key, child in value.items():
            if isinstance(key, str):
                self._text(key, place, path)
            else:
                raise _invalid(place, path, f"key {key!r} is {_kind_of(key)}, not a string", hint="quote it")
            below = is_opaque or (key == "parameters" and path.endswith(".opaque"))
            below = below or (key == "data" and path.startswith("status.devices["))
            plain = self.copy(child, place, path=_below(path, key), depth=depth + 1, is_opaque=below)
            if plain is not None or is_opaque:
                copied[key] = plain
        return copied


def _below(path: str, key: str) -> str:
    if not (key.isascii() and key.isidentifier()):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key


def _parse_one(document: Any, place: str, kinds: tuple[type[meta.Object], ...]) -> Manifest:
    kind = _kind(document, place, kinds)
    try:
        item = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _translated(error, place, document, kind) from error
    found = list(_ignored(document, _type_info(kind), ""))
    wrong = tuple(f"{place}{path}: {problem}" for path, problem in found if problem)
    return Manifest(item=item, document=document, ignored=tuple(path for path, _ in found), wrong=wrong)


_CLAIMS_NOW: Final = (
    "no server has it in that version since Kubernetes 1.32: write resource.k8s.io/v1, where deviceClassName, "
    "selectors, count and the rest of a request stand below `exactly`"
)
_ENDED: Final = {
    (f"resource.k8s.io/{version}", kind): _CLAIMS_NOW
    for version in ("v1alpha1", "v1alpha2", "v1alpha3")
    for kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceClass")
}
"""What took the place of kinds in versions that articles show still."""


def _kind(document: Any, place: str, kinds: tuple[type[meta.Object], ...]) -> type[meta.Object]:
    if not isinstance(document, dict):
        raise _unreadable(f"{place}it is {_kind_of(document)}, not a map with apiVersion and kind")
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            if isinstance(document.get("services"), dict):
                message = f"{place}it is a Compose file (`services`), not a manifest with apiVersion and kind"
                raise errors.RequestError(message, reason="ComposeFile", hint="fairlead compose -f FILE up")
            raise _invalid(place, field, "Required value", hint=_example(kinds))
    wanted = (document["apiVersion"], document["kind"])
    for kind in kinds:
        if wanted == (kind.API_VERSION, kind.KIND):
            return kind
    known = ", ".join(f"{kind.API_VERSION} {kind.KIND}" for kind in kinds)
    message = f"{place}no kind {wanted[1]!r} in version {wanted[0]!r} is known here"
    raise errors.RequestError(message, reason="KindUnknown", hint=_ENDED.get(wanted, f"known: {known}"))


def _translated(
    error: msgspec.ValidationError, place: str, document: dict[str, Any], kind: type[meta.Object]
) -> errors.Invalid:
    """Return msgspec's error in a user's words, with the path of the value."""
    text = str(error)
    problem, _, where = text.partition(" - at ")
    path = ""
    owner: Any = document
    for name, index, wildcard in _STEP.findall(where.strip("`$")):
        if wildcard:
            name = _culprit(document, kind, owner, text)  # noqa: PLW2901 - msgspec does not say which key
        owner = owner[int(index)] if index else owner[name]
        path = f"{path}[{index}]" if index else _below(path, name)
    if missing := re.fullmatch(r"Object missing required field `(.+)`", problem):
        return _invalid(place, _below(path, missing[1]), "Required value")
    if types := re.fullmatch(r"Expected `(.+)`, got `(.+)`", problem):
        names = types[1].replace("int | float", "float").split(" | ")
        wanted = " or ".join(_WORDS.get(name, name) for name in names if name != "null")
        hint = "quote it" if wanted == "a string" and not isinstance(owner, dict | list) else None
        got = f"{_WORDS.get(types[2], types[2])} ({json.dumps(owner)})" if hint else _WORDS.get(types[2], types[2])
        return _invalid(place, path, f"expected {wanted}, got {got}", hint=hint)
    return _invalid(place, path, problem)


def _culprit(document: dict[str, Any], kind: type[meta.Object], owner: dict[str, Any], text: str) -> str:
    """Find the key of a map that fails: alone in the map, it fails with the same words."""
    everything = dict(owner)
    try:
        for key, value in everything.items():
            owner.clear()
            owner[key] = value
            try:
                msgspec.convert(document, kind)
            except msgspec.ValidationError as error:
                if str(error) == text:
                    return key
    finally:
        owner.clear()
        owner.update(everything)
    return next(iter(everything))


@functools.cache
def _type_info(kind: type) -> msgspec.inspect.Type:
    """Return what a kind is made of, once a process: it takes 6 ms for a pod."""
    return msgspec.inspect.type_info(kind)


@functools.cache
def _fields(kind: type) -> dict[str, msgspec.inspect.Type]:
    """Return the fields of a structure by the names that a document has for them."""
    known = _type_info(kind)
    return {field.encode_name: field.type for field in known.fields} if isinstance(known, _STRUCT) else {}


_STRUCT: Final = msgspec.inspect.StructType
_NESTED: Final = (_STRUCT, msgspec.inspect.VarTupleType, msgspec.inspect.DictType)


def _ignored(value: Any, known: msgspec.inspect.Type, path: str) -> Iterator[tuple[str, str | None]]:
    """Yield the fields that nothing reads, each with what is wrong with leaving it out."""
    if isinstance(known, msgspec.inspect.UnionType):
        known = next((kind for kind in known.types if isinstance(kind, _NESTED)), known)
    match value, known:
        case list(), msgspec.inspect.VarTupleType(item_type=item):
            for at, child in enumerate(value):
                yield from _ignored(child, item, f"{path}[{at}]")
        case dict(), msgspec.inspect.DictType(value_type=item):
            for key, child in value.items():
                yield from _ignored(child, item, f'{path}["{key}"]')
        case dict(), msgspec.inspect.StructType(cls=struct):
            yield from _ignored_fields(value, struct, path)


def _ignored_fields(value: dict[str, Any], struct: type, path: str) -> Iterator[tuple[str, str | None]]:
    fields = _fields(struct)
    is_whole = struct.__module__.startswith(_WHOLE)
    for key, child in value.items():
        is_read = key not in unread.refused_only(struct.__name__) or unread.is_sandbox(struct.__name__, key, child)
        if key in fields and is_read:
            yield from _ignored(child, fields[key], _below(path, key))
        elif path or key not in {"apiVersion", "kind"}:
            yield (
                _below(path, key),
                unread.problem(struct.__name__, key, fields, is_whole=is_whole, is_empty=child in (False, "", [], {})),
            )


def _kind_of(value: object) -> str:
    names = {str: "str", bool: "bool", int: "int", float: "float", list: "array", dict: "object", type(None): "null"}
    name = names.get(type(value), type(value).__name__)
    return _WORDS.get(name, name)


def _example(kinds: tuple[type[meta.Object], ...]) -> str:
    return f"begin with apiVersion: {kinds[0].API_VERSION} and kind: {kinds[0].KIND}"


def _unreadable(problem: str) -> errors.RequestError:
    return errors.RequestError(f"the manifest cannot be read: {problem}", reason="ManifestUnreadable")


def _invalid(place: str, path: str, problem: str, hint: str | None = None) -> errors.Invalid:
    return errors.Invalid(f"{place}{path}: {problem}", reason="ManifestInvalid", hint=hint, field=path)
