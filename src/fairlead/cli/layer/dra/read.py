"""Reads objects of resource.k8s.io from files: in any version, several of them, lists as `kubectl get -o json` has.

Pods and nodes are read beside them where a verb looks at those. `source` decides between files and a cluster.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from fairlead import errors, files
from fairlead.wire.kubernetes import manifest, meta
from fairlead.wire.kubernetes.resource import dialect

O = TypeVar("O", bound=meta.Object)  # noqa: E741 as elsewhere

_STDIN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """What a verb looks at."""

    needed: tuple[type[meta.Object], ...]
    """A cluster that does not let them be read ends the verb."""
    beside: tuple[type[meta.Object], ...] = ()
    """What may not be read of these is said."""
    of_one_namespace: bool = False
    """The user's namespace will do where all may not be read."""

    @property
    def others(self) -> tuple[type[meta.Object], ...]:
        """Kinds of other groups."""
        return tuple(one for one in (*self.needed, *self.beside) if one not in dialect.KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What files or a cluster hold."""

    items: tuple[manifest.Manifest, ...]
    unread: tuple[str, ...]
    """What is said of objects that cannot be read."""
    others: Mapping[str, int]
    """By kind, how many objects of other groups were passed over."""

    def of(self, kind: type[O]) -> tuple[O, ...]:
        """Return the objects of a kind."""
        return tuple(one.item for one in self.items if isinstance(one.item, kind))


class Seen:
    """Collects objects one by one; one that cannot be read does not hide the others."""

    def __init__(self, source: str) -> None:
        """Begin. Args: source: the file, or the cluster's address."""
        self.source = source
        self._items: list[manifest.Manifest] = []
        self._unread: list[str] = []
        self._others = Counter[str]()

    def add(self, document: Any, place: str, convert: Callable[[Any], manifest.Manifest]) -> None:
        """Read one object."""
        try:
            self._items.append(convert(document))
        except errors.FairleadError as error:
            self._unread.append(errors.readable(f"{self.source}: {place or _place(document)}{error.message}"))

    def miss(self, kind: type[meta.Object], error: errors.FairleadError) -> None:
        """Note that a kind cannot be read at all."""
        self._unread.append(errors.readable(f"{self.source}: no {kind.KIND} was read: {error.message}"))

    def miss_others(self, kind: type[meta.Object], namespace: str, error: errors.FairleadError) -> None:
        """Note that a kind can be read in one namespace alone."""
        what = f"{kind.KIND} of namespaces other than {namespace}; what they have is not known"
        self._unread.append(errors.readable(f"{self.source}: {what}: {error.message}"))

    def pass_over(self, kind: str) -> None:
        """Count an object of a kind that the verb does not look at."""
        self._others[errors.readable(kind or "no kind")] += 1

    def objects(self) -> Objects:
        """Return what was collected."""
        others = dict(sorted(self._others.items()))
        return Objects(items=tuple(self._items), unread=tuple(self._unread), others=others)


def objects(names: Sequence[str], kinds: Kinds | None = None) -> Objects:
    """Return the objects of files. Raises: RequestError: a file that is not there, or is no YAML and no JSON."""
    beside = kinds.others if kinds is not None else ()
    read = []
    wanted = {(one.API_VERSION, one.KIND) for one in beside}
    for name in names:
        seen = Seen(name)
        for place, document in manifest.documents(_content(name)):
            is_map = isinstance(document, dict)
            version, kind = (str(document.get(key, "")) for key in ("apiVersion", "kind")) if is_map else ("", "")
            if not is_map or version.partition("/")[0] == dialect.GROUP:
                seen.add(document, place, dialect.read)
            elif (version, kind) in wanted:
                seen.add(document, place, lambda found: manifest.convert(found, beside))
            else:
                seen.pass_over(kind)
        read.append(seen.objects())
    items = tuple(one for each in read for one in each.items)
    unread = tuple(one for each in read for one in each.unread)
    if not items and not unread:
        message = f"no object of {dialect.GROUP} is in {', '.join(names)}"
        raise errors.RequestError(message, reason="ManifestEmpty", hint="`kubectl get resourceslices -o yaml`")
    others = sum((Counter(one.others) for one in read), Counter[str]())
    return Objects(items=items, unread=unread, others=dict(sorted(others.items())))


def _place(document: Any) -> str:
    """Return an object of a cluster in words: `default/train: `."""
    about = document.get("metadata") if isinstance(document, dict) else None
    about = about if isinstance(about, dict) else {}
    return "/".join(str(about[key]) for key in ("namespace", "name") if about.get(key)) + ": "


def _content(name: str) -> bytes:
    try:
        if name == _STDIN:
            return sys.stdin.buffer.read(manifest.LARGEST_DUMP + 1)
        return files.read_bounded(Path(name), limit_bytes=manifest.LARGEST_DUMP)
    except OSError as error:
        message = f"cannot read {name}: {error.strerror}"
        raise errors.RequestError(message, reason="FileUnreadable", hint="name a readable file") from error
