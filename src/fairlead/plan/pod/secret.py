"""Judges and resolves what a pod takes from Secrets: variables, and files of a volume. Pure.

A Secret that is not there, or lacks a key, keeps its container waiting, as a kubelet has it: it starts as soon as the
Secret is whole. Values are bytes; a variable is one line of text.
Source: kubernetes pkg/apis/core/validation, ValidateEnvFrom, validateSecretVolumeSource; pkg/kubelet makeEnvironment.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.plan.pod import environment as expansion
from fairlead.wire.kubernetes import core

MISSING: Final = "CreateContainerConfigError"
"""Reason of a container that waits for a Secret."""
KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_KEY_RULE: Final = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
_MODE_RULE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_LENGTH_RULE: Final = "must be a path that a file system takes, each name of 255 bytes at most"
_APART_RULE: Final = "must not be another item's path, nor a folder of one, nor lie below one"
_MOST_MODE: Final = 0o777
_LONGEST_NAME, _LONGEST_PATH = 255, 1024
_LONGEST_LINE: Final = 60_000
"""Bytes of a variable and its name: podman reads lines of 64 KiB."""

Values = Mapping[str, bytes]
_Folder = dict[str, "_Folder | None"]
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


def problems(path: str, item: core.Container, volumes: Mapping[str, core.Volume]) -> Iterator[str]:
    """Yield what is wrong with what a container takes from Secrets, in the API server's words.

    Args: path: of the container.   volumes: of its pod, by name.
    """
    for index, one in enumerate(item.env):
        yield from _variable(f"{path}.env[{index}]", one)
    for index, source in enumerate(item.env_from):
        where = f"{path}.envFrom[{index}]"
        if source.secret_ref is None:
            yield f"{where}: Required value: must specify a source we offer (secretRef)"
        elif not source.secret_ref.name:
            yield f"{where}.secretRef.name: Required value"
        if source.prefix and not KEY.fullmatch(source.prefix):
            yield f'{where}.prefix: Invalid value: "{source.prefix}": {_KEY_RULE}'
    for index, mount in enumerate(item.volume_mounts):
        found = volumes.get(mount.name)
        if mount.sub_path and (found is None or found.secret is None):
            yield f"{path}.volumeMounts[{index}].subPath: Forbidden: it is offered for secret volumes only here"
        elif not _is_inside(mount.sub_path or "."):
            yield f'{path}.volumeMounts[{index}].subPath: Invalid value: "{mount.sub_path}": {_PATH_RULE}'


_PATH_RULE: Final = "must be a relative path and must not contain the path element '..'"


def _is_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


def _variable(path: str, one: core.EnvVar) -> Iterator[str]:
    if one.value_from is None:
        return
    if one.value:
        yield f'{path}.valueFrom: Invalid value: "": may not be specified when `value` is not empty'
    source = one.value_from.secret_key_ref
    if source is None:
        yield f"{path}.valueFrom: Required value: must specify a source we offer (secretKeyRef)"
        return
    if not source.name:
        yield f"{path}.valueFrom.secretKeyRef.name: Required value"
    yield from _key(f"{path}.valueFrom.secretKeyRef.key", source.key)
    if one.name and not KEY.fullmatch(one.name):
        yield f'{path}.name: Invalid value: "{one.name}": {_KEY_RULE}'


def _key(path: str, key: str) -> Iterator[str]:
    if not key:
        yield f"{path}: Required value"
    elif not KEY.fullmatch(key):
        yield f'{path}: Invalid value: "{key}": {_KEY_RULE}'


def volume_problems(path: str, source: core.SecretVolume) -> Iterator[str]:
    """Yield what is wrong with a volume of a Secret."""
    if not source.secret_name:
        yield f"{path}.secretName: Required value"
    taken: _Folder = {}
    if not _is_mode(source.default_mode):
        yield f"{path}.defaultMode: Invalid value: {source.default_mode}: {_MODE_RULE}"
    for index, one in enumerate(source.items):
        where = f"{path}.items[{index}]"
        yield from _key(f"{where}.key", one.key)
        if not one.path:
            yield f"{where}.path: Required value"
        elif not _is_inside(one.path) or one.path.startswith("..") or one.path.strip("/") in {"", "."}:
            yield f'{where}.path: Invalid value: "{one.path}": {_PATH_RULE}'
        elif len(one.path) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in one.path.split("/")):
            yield f'{where}.path: Invalid value: "{errors.readable(one.path[:80])}": {_LENGTH_RULE}'
        elif not _is_claimed(posixpath.normpath(one.path), taken):
            yield f'{where}.path: Invalid value: "{one.path}": {_APART_RULE}'
        if not _is_mode(one.mode):
            yield f"{where}.mode: Invalid value: {one.mode}: {_MODE_RULE}"


def _is_claimed(path: str, folder: _Folder) -> bool:
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


def _is_mode(mode: int | None) -> bool:
    return mode is None or 0 <= mode <= _MOST_MODE


def names(spec: core.PodSpec) -> tuple[str, ...]:
    """Return the names of the Secrets that a pod's containers take something from."""
    return tuple(dict.fromkeys(_names(spec)))


def _names(spec: core.PodSpec) -> Iterator[str]:
    yield from (one.secret.secret_name for one in spec.volumes if one.secret is not None)
    for item in (*spec.init_containers, *spec.containers):
        yield from (one.secret_ref.name for one in item.env_from if one.secret_ref is not None)
        sources = (one.value_from.secret_key_ref for one in item.env if one.value_from is not None)
        yield from (one.name for one in sources if one is not None)


def environment(
    item: core.Container, held: Mapping[str, Values], namespace: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a container's variables as its pod has them: those given by value, and those taken from Secrets.

    A value that refers to a variable taken from a Secret is a secret too.
    Args:    held: the Secrets that are there, by name.   namespace: of the pod, for messages.
    Raises:  NotFound (`CreateContainerConfigError`): it has to wait; Invalid: a value is not a line of text.
    """
    plain, taken = dict[str, str](), dict[str, str]()
    for source in item.env_from:
        if (whole := source.secret_ref) is None or not _is_there(whole.name, held, namespace, optional=whole.optional):
            continue
        for key, value in held[whole.name].items():
            taken[source.prefix + key] = _line(value, key, f"{namespace}/{whole.name}")
    for one in item.env:
        ref = one.value_from.secret_key_ref if one.value_from is not None else None
        if ref is None:
            text = expansion.expand(one.value, {**plain, **taken})
            is_secret = expansion.references(one.value, taken)
            plain.pop(one.name, None)
            taken.pop(one.name, None)
            (taken if is_secret else plain)[one.name] = text
            continue
        if _is_there(ref.name, held, namespace, optional=ref.optional):
            found = held[ref.name].get(ref.key)
            if found is not None:
                plain.pop(one.name, None)
                taken[one.name] = _line(found, ref.key, f"{namespace}/{ref.name}")
            elif not ref.optional:
                raise _without_key(ref.key, ref.name, namespace)
    return plain, taken


def files(source: core.SecretVolume, held: Mapping[str, Values], namespace: str) -> tuple[File, ...]:
    """Return the files of a volume. Raises: NotFound (`CreateContainerConfigError`): its containers have to wait."""
    name = source.secret_name
    if not _is_there(name, held, namespace, optional=source.optional):
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
            raise _without_key(one.key, name, namespace)
    return tuple(found)


def _is_there(name: str, held: Mapping[str, Values], namespace: str, *, optional: bool) -> bool:
    if name in held:
        return True
    if optional:
        return False
    hint = f"the container starts once it is there: `fairlead secrets create {name} -n {namespace}`"
    raise errors.NotFound(f'secret "{name}" not found in namespace "{namespace}"', reason=MISSING, hint=hint)


def _without_key(key: str, name: str, namespace: str) -> errors.NotFound:
    message = f"couldn't find key {key} in Secret {namespace}/{name}"
    hint = f"the container starts once it has it; `fairlead secrets show {name} -n {namespace}` lists its keys"
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
