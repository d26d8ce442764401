"""Judges and resolves what a pod takes from Secrets and ConfigMaps: variables, and files of a volume. Pure.

One that is not there, or lacks a key, keeps its container waiting, as a kubelet has it: it starts as soon as the object
is whole. Values are bytes; a variable from a Secret is one line of text.
Source: kubernetes pkg/apis/core/validation, ValidateEnvFrom, validateSecretVolumeSource; pkg/kubelet makeEnvironment.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fairlead import errors
from fairlead.plan.pod.values import environment as expansion
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.source import KeySelector, KeyToPath
from fairlead.wire.kubernetes.pod.volume import SecretVolume

MISSING: Final = "CreateContainerConfigError"
"""Reason of a container that waits for a Secret or ConfigMap."""
SECRET, CONFIG_MAP = "Secret", "ConfigMap"
KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
KEY_RULE: Final = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
MODE_RULE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_LENGTH_RULE: Final = "must be a path that a file system takes, each name of 255 bytes at most"
_APART_RULE: Final = "must not be another item's path, nor a folder of one, nor lie below one"
_MOST_MODE: Final = 0o777
_LONGEST_NAME, _LONGEST_PATH = 255, 1024
_LONGEST_LINE: Final = 60_000
"""Bytes of a variable and its name: podman reads lines of 64 KiB."""

T = TypeVar("T")
Values = Mapping[str, bytes]
Folder = dict[str, "Folder | None"]
"""What is in a folder by name: folders, and None for a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a volume."""

    path: str
    """Relative to the volume."""
    data: bytes
    mode: int | None
    """None: for the container's user alone where its number is known, else for every user of the container."""

    def __repr__(self) -> str:
        """Name the file, never what is in it."""
        return f"<File {self.path}>"


def problems(path: str, item: core.Container) -> Iterator[str]:
    """Yield what is wrong with what a container takes from Secrets and ConfigMaps, in the API server's words.

    Args: path: of the container.
    """
    for index, one in enumerate(item.env):
        yield from _variable(f"{path}.env[{index}]", one)
    for index, source in enumerate(item.env_from):
        where = f"{path}.envFrom[{index}]"
        given = {"secretRef": source.secret_ref, "configMapRef": source.config_map_ref}
        found = {name: one for name, one in given.items() if one is not None}
        if len(found) != 1:
            yield f"{where}: Required value: must specify one source, secretRef or configMapRef"
        yield from (f"{where}.{name}.name: Required value" for name, one in found.items() if not one.name)
        if source.prefix and not KEY.fullmatch(source.prefix):
            yield f'{where}.prefix: Invalid value: "{source.prefix}": {KEY_RULE}'
    for index, mount in enumerate(item.volume_mounts):
        if mount.sub_path and mount.sub_path_expr:
            where = f"{path}.volumeMounts[{index}].subPathExpr"
            yield f"{where}: Invalid value: subPathExpr and subPath are mutually exclusive"
        if not is_inside(mount.sub_path_expr or "."):
            yield f'{path}.volumeMounts[{index}].subPathExpr: Invalid value: "{mount.sub_path_expr}": {_PATH_RULE}'
        if not is_inside(mount.sub_path or "."):
            yield f'{path}.volumeMounts[{index}].subPath: Invalid value: "{mount.sub_path}": {_PATH_RULE}'


_PATH_RULE: Final = "must be a relative path and must not contain the path element '..'"


def is_inside(path: str) -> bool:
    """Return whether a path leads to what is below a volume, as far as its words say."""
    return not path.startswith("/") and ".." not in path.split("/")


def _variable(path: str, one: core.EnvVar) -> Iterator[str]:
    if one.value_from is None:
        return
    if one.value:
        yield f'{path}.valueFrom: Invalid value: "": may not be specified when `value` is not empty'
    source = one.value_from
    given = (source.secret_key_ref, source.config_map_key_ref, source.field_ref, source.resource_field_ref)
    if sum(kind is not None for kind in given) != 1:
        offered = "secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef"
        yield f"{path}.valueFrom: Required value: must specify one source, {offered}"
        return
    for name, ref in (("secretKeyRef", source.secret_key_ref), ("configMapKeyRef", source.config_map_key_ref)):
        if ref is not None:
            if not ref.name:
                yield f"{path}.valueFrom.{name}.name: Required value"
            yield from _key(f"{path}.valueFrom.{name}.key", ref.key)
    if source.secret_key_ref is not None and one.name and not KEY.fullmatch(one.name):
        yield f'{path}.name: Invalid value: "{one.name}": {KEY_RULE}'


def _key(path: str, key: str) -> Iterator[str]:
    if not key:
        yield f"{path}: Required value"
    elif not KEY.fullmatch(key):
        yield f'{path}: Invalid value: "{key}": {KEY_RULE}'


def volume_problems(path: str, source: SecretVolume) -> Iterator[str]:
    """Yield what is wrong with a volume of a Secret."""
    if not source.secret_name:
        yield f"{path}.secretName: Required value"
    yield from mode_problems(f"{path}.defaultMode", source.default_mode)
    yield from item_problems(path, source.items, {})


def mode_problems(path: str, mode: int | None) -> Iterator[str]:
    """Yield what is wrong with permission bits."""
    if mode is not None and not 0 <= mode <= _MOST_MODE:
        yield f"{path}: Invalid value: {mode}: {MODE_RULE}"


def item_problems(path: str, items: Sequence[KeyToPath], taken: Folder) -> Iterator[str]:
    """Yield what is wrong with the keys that are files. Args: taken: files of the volume so far; it grows."""
    for index, one in enumerate(items):
        where = f"{path}.items[{index}]"
        yield from _key(f"{where}.key", one.key)
        yield from path_problems(where, one.path, taken)
        yield from mode_problems(f"{where}.mode", one.mode)


def path_problems(where: str, path: str, taken: Folder) -> Iterator[str]:
    """Yield what is wrong with a file's path in its volume. Args: taken: as of `item_problems`."""
    if not path:
        yield f"{where}.path: Required value"
    elif not is_inside(path) or path.startswith("..") or path.strip("/") in {"", "."}:
        yield f'{where}.path: Invalid value: "{path}": {_PATH_RULE}'
    elif len(path) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in path.split("/")):
        yield f'{where}.path: Invalid value: "{errors.readable(path[:80])}": {_LENGTH_RULE}'
    elif not _is_claimed(posixpath.normpath(path), taken):
        yield f'{where}.path: Invalid value: "{path}": {_APART_RULE}'


def _is_claimed(path: str, folder: Folder) -> bool:
    """Take a path for a file and return True; False: another file is it, or a folder of it, or lies below it."""
    *folders, name = path.split("/")
    for part in folders:
        inner = folder.setdefault(part, {})
        if inner is None:
            return False
        folder = inner
    if name in folder:
        return False
    folder[name] = None
    return True


def names(spec: core.PodSpec) -> tuple[str, ...]:
    """Return the names of the Secrets that a pod's containers take something from."""
    return tuple(dict.fromkeys(_names(spec)))


def _names(spec: core.PodSpec) -> Iterator[str]:
    yield from (one.secret.secret_name for one in spec.volumes if one.secret is not None)
    several = (one.projected.sources for one in spec.volumes if one.projected is not None)
    yield from (one.secret.name for sources in several for one in sources if one.secret is not None)
    for item in (*spec.init_containers, *spec.containers):
        yield from (one.secret_ref.name for one in item.env_from if one.secret_ref is not None)
        sources = (one.value_from.secret_key_ref for one in item.env if one.value_from is not None)
        yield from (one.name for one in sources if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What variables are taken from beside Secrets."""

    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The ConfigMaps that are there, by name."""
    fact: Callable[[core.EnvVarSource], str] = lambda _source: ""
    """Reads a field of the pod."""


NOTHING: Final = Given()


def environment(
    item: core.Container, held: Mapping[str, Values], namespace: str, given: Given = NOTHING
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a container's variables as its pod has them: those that any may see, and those taken from Secrets.

    A value that refers to a variable taken from a Secret is a secret too.
    Args:    held: the Secrets that are there, by name.   namespace: of the pod, for messages.
    Raises:  NotFound (`CreateContainerConfigError`): it has to wait; Invalid: a value is not a line of text.
    """
    found = _Variables()
    for source in item.env_from:
        _take_all(found, source, held, namespace, given)
    for one in item.env:
        if one.value_from is None:
            is_secret = expansion.references(one.value, found.taken)
            text = expansion.expand(one.value, {**found.plain, **found.taken})
            found.put(one.name, text, is_secret=is_secret)
        else:
            _take(found, one.name, one.value_from, held, namespace, given)
    return found.plain, found.taken


class _Variables:
    """Variables by name: those that any may see, and secrets. One that is given twice is what it was given last."""

    def __init__(self) -> None:
        self.plain: dict[str, str] = {}
        self.taken: dict[str, str] = {}

    def put(self, name: str, value: str, *, is_secret: bool) -> None:
        self.plain.pop(name, None)
        self.taken.pop(name, None)
        (self.taken if is_secret else self.plain)[name] = value


def _take_all(
    found: _Variables, source: core.EnvFromSource, held: Mapping[str, Values], namespace: str, given: Given
) -> None:
    """Take every key of a Secret or ConfigMap."""
    secret, mapped = source.secret_ref, source.config_map_ref
    if secret is not None and _is_there(secret.name, held, namespace, optional=secret.optional):
        for key, value in held[secret.name].items():
            found.put(source.prefix + key, _line(value, key, f"{namespace}/{secret.name}"), is_secret=True)
    if mapped is not None and _is_there(mapped.name, given.maps, namespace, optional=mapped.optional, kind=CONFIG_MAP):
        for key, text in given.maps[mapped.name].items():
            found.put(source.prefix + key, text, is_secret=False)


def _take(
    found: _Variables,
    name: str,
    source: core.EnvVarSource,
    held: Mapping[str, Values],
    namespace: str,
    given: Given,
) -> None:
    """Take one variable from where it is said to come from."""
    if (ref := source.secret_key_ref) is not None:
        if (value := _value(ref, held, namespace, SECRET)) is not None:
            found.put(name, _line(value, ref.key, f"{namespace}/{ref.name}"), is_secret=True)
    elif (ref := source.config_map_key_ref) is not None:
        if (word := _value(ref, given.maps, namespace, CONFIG_MAP)) is not None:
            found.put(name, word, is_secret=False)
    else:
        found.put(name, given.fact(source), is_secret=False)


def _value(ref: KeySelector, held: Mapping[str, Mapping[str, T]], namespace: str, kind: str) -> T | None:
    """Return the value of a key; None: there is none, and the variable may be missing."""
    if not _is_there(ref.name, held, namespace, optional=ref.optional, kind=kind):
        return None
    if ref.key not in held[ref.name] and not ref.optional:
        raise _without_key(ref.key, ref.name, namespace, kind)
    return held[ref.name].get(ref.key)


def files(source: SecretVolume, held: Mapping[str, Values], namespace: str, kind: str = SECRET) -> tuple[File, ...]:
    """Return the files of a volume. Raises: NotFound (`CreateContainerConfigError`): its containers have to wait."""
    name = source.secret_name
    if not _is_there(name, held, namespace, optional=source.optional, kind=kind):
        return ()
    values = held[name]
    if not source.items:
        return tuple(File(path=key, data=values[key], mode=source.default_mode) for key in sorted(values))
    found = []
    for one in source.items:
        if one.key in values:
            mode = source.default_mode if one.mode is None else one.mode
            found.append(File(path=one.path, data=values[one.key], mode=mode))
        elif not source.optional:
            raise _without_key(one.key, name, namespace, kind)
    return tuple(found)


def _is_there(name: str, held: Mapping[str, object], namespace: str, *, optional: bool, kind: str = SECRET) -> bool:
    if name in held:
        return True
    if optional:
        return False
    make = f"fairlead secrets create {name} -n {namespace}" if kind == SECRET else "fairlead apply -f FILE"
    message = f'{kind.lower()} "{name}" not found in namespace "{namespace}"'
    raise errors.NotFound(message, reason=MISSING, hint=f"the container starts once it is there: `{make}`")


def _without_key(key: str, name: str, namespace: str, kind: str) -> errors.NotFound:
    message = f"couldn't find key {key} in {kind} {namespace}/{name}"
    show = (
        f"fairlead secrets show {name} -n {namespace}" if kind == SECRET else f"fairlead get configmap {name} -o yaml"
    )
    hint = f"the container starts once it has it; `{show}` lists its keys"
    return errors.NotFound(message, reason=MISSING, hint=hint)


def _line(value: bytes, key: str, secret: str) -> str:
    """Return a value as a variable has it. Raises: Invalid (`CreateContainerConfigError`), which never says it."""
    problem = ""
    if b"\n" in value or b"\r" in value or b"\0" in value:
        problem = "has more than one line"
    elif len(value) > _LONGEST_LINE:
        problem = f"is longer than {_LONGEST_LINE} bytes"
    else:
        try:
            return value.decode()
        except UnicodeDecodeError:
            problem = "is not text"
    message = f"key {key} of Secret {secret} {problem}, and a variable is one line of text here"
    raise errors.Invalid(message, reason=MISSING, hint="take it as a file: `--secret NAME:/PATH`, or a secret volume")
