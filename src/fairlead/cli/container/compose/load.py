"""Reads a Compose project from its files: several of them merged, `extends`, `include`, variables, values.

Every file is read by the person who calls, with that person's rights: a service that runs as root reads none of them.
How many files are read and how deep they lead to each other is bounded.
Source: Compose specification, "Include", "Extend", "Env_file"; docker compose's environment variables.
"""

from __future__ import annotations

import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fairlead import errors, files
from fairlead.plan.compose import envfile, merge, mount, project, value
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.compose.interpolate import Variables
from fairlead.plan.compose.project import Project
from fairlead.wire.compose import document
from fairlead.wire.compose.document import Tagged

NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
_OVERRIDES: Final = (
    "compose.override.yaml", "compose.override.yml", "docker-compose.override.yml", "docker-compose.override.yaml",
)  # fmt: skip
_MOST_FILES: Final = 100
_DEEPEST: Final = 16
_LARGEST_VALUE: Final = 1 << 20
_NOT_INHERITED: Final = ("extends",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line names."""

    sources: Sequence[str] = ()
    env_files: Sequence[str] = ()
    name: str = ""
    folder: str = ""
    """Project directory; empty: that of the first file."""
    profiles: Sequence[str] = ()
    services: Sequence[str] = ()
    """Services that are named, which enables them."""
    env: Mapping[str, str] = field(default_factory=dict)


def project_name(given: Given) -> str:
    """Return the name of the project without reading what is in it, where the command line says it. Raises: Invalid."""
    return project.check_name(given.name) if given.name else ""


def load(given: Given, remarks: Remarks) -> Project:
    """Return a project. Raises: RequestError, Invalid: with the place in the file."""
    reader = _Reader(remarks)
    folder = Path(given.folder) if given.folder else None
    own = _variables(reader, given, folder or _folder(_named(given, given.env)))
    sources = _named(given, own)
    folder = (folder or _folder(sources)).absolute()
    if not given.env_files and not given.folder and sources != _named(given, given.env):
        own = _variables(reader, given, folder)
    variables = Variables(own)
    whole = _Whole(reader, variables, own)
    found = whole.read(sources, folder, depth=0)
    for name in variables.unset:
        remarks.note(f"${name}", "the variable is not set, and nothing is put in its place")
    return _project(reader, found, given, folder, own, remarks)


def _project(
    reader: _Reader, found: dict[str, Any], given: Given, folder: Path, own: Mapping[str, str], remarks: Remarks
) -> Project:
    project.check_top(found, remarks)
    named = given.name or own.get("COMPOSE_PROJECT_NAME") or value.text(found.get("name") or "", "name")
    name = project.check_name(named or project.default_name(folder.name))
    every = found.get("services") or {}
    if not every:
        raise errors.Invalid("the project has no services", reason="ComposeInvalid", hint="`services:` lists them")
    profiles = given.profiles or [one.strip() for one in own.get("COMPOSE_PROFILES", "").split(",") if one.strip()]
    enabled, disabled = project.select(every, profiles, given.services)
    if not enabled:
        shown = ", ".join(sorted({one for each in every.values() for one in each.get("profiles") or ()})[:10])
        raise errors.Invalid(
            f"no service is selected: all have profiles ({shown})", reason="ComposeInvalid", hint="--profile NAME"
        )
    made = Project(
        name=name,
        services={one: _complete(reader, one, inner, own) for one, inner in enabled.items()},
        disabled=disabled,
        **{kind: found.get(kind) or {} for kind in ("networks", "volumes", "configs", "secrets")},
    )
    return replace(made, contents=_contents(reader, made, own))


def _complete(reader: _Reader, name: str, service: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    """Return a service with the variables of its files, and its labels."""
    path, found = f"services.{name}", dict(service)
    env = dict[str, str]()
    for at, one in enumerate(service.get("env_file") or ()):
        env.update(_env_file(reader, one, f"{path}.env_file[{at}]", ChainMap(env, dict(own))))
    for key, text in (service.get("environment") or {}).items():
        if text is not None:
            env[key] = text
        elif key in own:
            env[key] = own[key]
    found["environment"] = env
    labels = dict[str, str]()
    for at, one in enumerate(value.texts(service.get("label_file"), f"{path}.label_file")):
        labels.update(envfile.parse(reader.text(Path(one), f"{path}.label_file[{at}]"), one, own))
    if isinstance(build := service.get("build"), dict) and build.get("args"):
        given = {key: own.get(key) if text is None else text for key, text in build["args"].items()}
        found["build"] = {**build, "args": {key: text for key, text in given.items() if text is not None}}
    if labels:
        found["labels"] = {**labels, **(service.get("labels") or {})}
    return found


def _env_file(reader: _Reader, given: Mapping[str, Any], path: str, known: Mapping[str, str]) -> dict[str, str]:
    value.only(given, ("path", "required", "format"), path)
    file = Path(value.text(given.get("path"), f"{path}.path"))
    if not value.boolean(given.get("required", True), f"{path}.required") and not file.exists():
        return {}
    text = reader.text(file, path)
    match str(given.get("format") or ""):
        case "":
            return envfile.parse(text, str(file), known)
        case "raw":
            return envfile.raw(text)
        case other:
            raise value.invalid(f"{path}.format", f'"{value.shown(other)}" is not one: raw, or leave it out')


def _contents(reader: _Reader, found: Project, own: Mapping[str, str]) -> dict[tuple[str, str], bytes]:
    """Return the contents of the configs and secrets that a service uses."""
    contents = dict[tuple[str, str], bytes]()
    for kind in ("configs", "secrets"):
        declared = getattr(found, kind)
        used = {str(one.get("source")) for each in found.services.values() for one in each.get(kind) or ()}
        for name in sorted(used & declared.keys()):
            path, one = f"{kind}.{name}", declared[name] or {}
            if not mount.is_external(one, path):
                contents[kind, name] = _content(reader, one, path, own)
    return contents


def _content(reader: _Reader, given: Mapping[str, Any], path: str, own: Mapping[str, str]) -> bytes:
    sources = [key for key in ("file", "environment", "content") if given.get(key) is not None]
    if len(sources) != 1:
        raise value.invalid(path, "it has one of file, environment and content, or is external")
    text = value.text(given[sources[0]], f"{path}.{sources[0]}")
    if sources[0] == "file":
        return reader.data(Path(text), f"{path}.file", _LARGEST_VALUE)
    if sources[0] == "content":
        return text.encode()
    if text not in own:
        raise value.invalid(f"{path}.environment", f'the variable "{value.shown(text)}" is not set')
    return own[text].encode()


def _named(given: Given, env: Mapping[str, str]) -> list[str]:
    """Return the files of a project: named, of COMPOSE_FILE, or found from the working folder upwards."""
    if given.sources:
        return list(given.sources)
    if files_ := env.get("COMPOSE_FILE"):
        return files_.split(env.get("COMPOSE_PATH_SEPARATOR") or os.pathsep)
    start = Path(given.folder).absolute() if given.folder else Path.cwd()
    for folder in (start, *start.parents):
        if found := next((folder / one for one in NAMES if (folder / one).is_file()), None):
            more = next((folder / one for one in _OVERRIDES if (folder / one).is_file()), None)
            return [str(found), *([str(more)] if more else [])]
    message = f"no Compose file is here: {', '.join(NAMES)}"
    raise errors.RequestError(message, reason="FileRequired", hint="fairlead compose -f FILE up")


def _folder(sources: Sequence[str]) -> Path:
    return Path.cwd() if sources[0] == "-" else Path(sources[0]).absolute().parent


def _variables(reader: _Reader, given: Given, folder: Path) -> dict[str, str]:
    """Return the variables of the environment and of `.env`, the environment first."""
    named = [Path(one) for one in given.env_files]
    if not named and (more := given.env.get("COMPOSE_ENV_FILES")):
        named = [Path(one) for one in more.split(",")]
    if not named and (folder / ".env").is_file():
        named = [folder / ".env"]
    found = dict[str, str]()
    for one in named:
        found.update(envfile.parse(reader.text(one, "--env-file"), str(one), ChainMap(dict(given.env), found)))
    return {**found, **given.env}


class _Reader:
    """Reads files, a bounded number of them."""

    def __init__(self, remarks: Remarks) -> None:
        self.remarks = remarks
        self._left = _MOST_FILES

    def data(self, file: Path, path: str, most: int = document.LARGEST_BYTES) -> bytes:
        """Return what a file holds. Args: path: who names it. Raises: Invalid."""
        self._left -= 1
        if self._left < 0:
            raise value.invalid(path, f"the project is of more than {_MOST_FILES} files")
        try:
            found = sys.stdin.buffer.read(most + 1) if str(file) == "-" else files.read_judged(file.expanduser())[1]
        except (OSError, ValueError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise value.invalid(path, f'cannot read "{value.shown(file)}": {why.lower()}') from error
        if len(found) > most:
            raise value.invalid(path, f'"{value.shown(file)}" has more than {most} bytes')
        return found

    def text(self, file: Path, path: str) -> str:
        """Return the text of a file. Raises: Invalid."""
        try:
            return self.data(file, path).decode()
        except UnicodeDecodeError as error:
            raise value.invalid(path, f'"{value.shown(file)}" is not text in UTF-8') from error


class _Whole:
    """Reads the files of a project, with what they include and extend, as one document."""

    def __init__(self, reader: _Reader, variables: Variables, own: Mapping[str, str]) -> None:
        self._reader, self._variables, self._own = reader, variables, own

    def read(self, sources: Iterable[str], folder: Path, depth: int) -> dict[str, Any]:
        """Return files merged, the later ones over the earlier. Args: folder: that their paths begin in."""
        if depth > _DEEPEST:
            raise value.invalid("include", f"files include each other more than {_DEEPEST} deep, or in a circle")
        found: dict[str, Any] = {}
        included: dict[str, Any] = {}
        for source in sources:
            place = Path(source) if source != "-" else folder / "-"
            for one in self._file(source, folder):
                mine = self._extended(one, place, folder)
                for entry in value.sequence(mine.pop("include", None), "include"):
                    included = _united(included, self._include(entry, folder, depth))
                found = merge.files(found, mine)
        return _united(included, found) if included else found

    def _file(self, source: str, folder: Path) -> list[dict[str, Any]]:
        """Return the documents of a file with variables, long forms and absolute paths."""
        found = []
        for one in document.parse(self._reader.data(Path(source), f"-f {source}"), source):
            put_in = self._variables.put_in_all(one, "")
            found.append(_resolved(project.shaped(put_in, source), folder))
        return found

    def _include(self, entry: Any, folder: Path, depth: int) -> dict[str, Any]:
        given = entry if isinstance(entry, dict) else {"path": entry}
        value.only(given, ("path", "project_directory", "env_file"), "include")
        paths = [str(_under(folder, one)) for one in value.texts(given.get("path"), "include.path")]
        if not paths:
            raise value.invalid("include.path", "it is needed")
        inner = Path(paths[0]).parent
        if given.get("project_directory"):
            inner = _under(folder, value.text(given["project_directory"], "include.project_directory"))
        named = [_under(folder, one) for one in value.texts(given.get("env_file"), "include.env_file")]
        if not named and (inner / ".env").is_file() and inner != folder:
            named = [inner / ".env"]
        if not named:
            return self.read(paths, inner, depth + 1)
        more = dict[str, str]()
        for one in named:
            more.update(envfile.parse(self._reader.text(one, "include.env_file"), str(one), self._own))
        mine = {**more, **self._own}
        variables = Variables(mine)
        found = _Whole(self._reader, variables, mine).read(paths, inner, depth + 1)
        self._variables.unset |= variables.unset
        return found

    def _extended(self, one: dict[str, Any], place: Path, folder: Path) -> dict[str, Any]:
        services = one.get("services")
        if not isinstance(services, dict):
            return dict(one)
        return {**one, "services": {name: self._extend(services, name, place, folder, ()) for name in services}}

    def _extend(
        self, services: Mapping[str, Any], name: str, place: Path, folder: Path, chain: tuple[tuple[str, str], ...]
    ) -> Any:
        """Return a service over the one that it extends. Args: chain: the services that led here."""
        service = services[name]
        if isinstance(service, Tagged) or not service or service.get("extends") is None:
            return service
        path, here = f"services.{name}.extends", (str(place), name)
        if here in chain or len(chain) > _DEEPEST:
            raise value.invalid(path, "services extend each other in a circle, or too deep")
        given = service["extends"]
        given = {"service": given} if isinstance(given, str) else value.mapping(given, path)
        value.only(given, ("service", "file"), path)
        other = value.text(given.get("service"), f"{path}.service")
        known, inner_place = services, place
        if given.get("file"):
            inner_place = _under(folder, value.text(given["file"], f"{path}.file"))
            known = {}
            for each in self._file(str(inner_place), inner_place.parent):
                known = {**known, **(each.get("services") or {})}
        if other not in known:
            raise value.invalid(
                path, f'there is no service "{value.shown(other)}" in "{value.shown(inner_place.name)}"'
            )
        base = self._extend(known, other, inner_place, inner_place.parent, (*chain, here))
        own = {key: inner for key, inner in service.items() if key not in _NOT_INHERITED}
        return merge.services(merge.services({}, base or {}), own)


def _united(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return included files and the including one together. Raises: Invalid: both have a service of one name."""
    for name in (base.get("services") or {}).keys() & (over.get("services") or {}).keys():
        if base["services"][name] != over["services"][name]:
            raise value.invalid(f"services.{name}", "an included file has a service of this name, too")
    return merge.files(base, over)


def _under(folder: Path, given: str) -> Path:
    """Return a path of a file as an absolute one. Raises: Invalid."""
    if "\0" in given:
        raise value.invalid(value.shown(given), "it is not a path")
    try:
        expanded = Path(given).expanduser() if given.startswith("~") else Path(given)
    except RuntimeError as error:
        raise value.invalid(value.shown(given), "there is no such home folder") from error
    return Path(os.path.normpath(folder / expanded))


def _resolved(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a document whose paths begin at the root of the machine."""
    for kind in ("configs", "secrets"):
        for name, one in (found.get(kind) or {}).items() if isinstance(found.get(kind), dict) else ():
            if isinstance(one, dict) and isinstance(one.get("file"), str):
                found[kind][name] = {**one, "file": str(_under(folder, one["file"]))}
    services = found.get("services")
    if isinstance(services, dict):
        found["services"] = {
            name: one if isinstance(one, Tagged) else _resolved_service(one, folder) for name, one in services.items()
        }
    return found


def _resolved_service(service: dict[str, Any], folder: Path) -> dict[str, Any]:
    found = dict(service)
    for key, change in _PATHS.items():
        one = found.get(key)
        if isinstance(one, Tagged):
            found[key] = Tagged(one.tag, None if one.value is None else change(one.value, folder))
        elif one is not None:
            found[key] = change(one, folder)
    return found


def _with_paths(given: Any, key: str, folder: Path, *, only: str = "") -> Any:
    def changed(one: Any) -> Any:
        is_meant = isinstance(one, dict) and isinstance(one.get(key), str) and (not only or one.get("type") == only)
        return {**one, key: str(_under(folder, one[key]))} if is_meant else one

    return [changed(one) for one in given] if isinstance(given, list) else changed(given)


def _build_context(given: Any, folder: Path) -> Any:
    if not isinstance(given, dict):
        return given
    context = str(given.get("context") or ".")
    if "://" in context or context.startswith("git@"):
        return given
    return {**given, "context": str(_under(folder, context))}


_PATHS: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    "env_file": lambda given, folder: _with_paths(given, "path", folder),
    "volumes": lambda given, folder: _with_paths(given, "source", folder, only="bind"),
    "build": _build_context,
    "label_file": lambda given, folder: [str(_under(folder, one)) for one in value.texts(given, "label_file")],
}
"""What of a service's attributes is a path, resolved where the file is read."""
