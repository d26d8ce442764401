"""Answers who was given what, from the kubelet's checkpoint; the shim asks at every container's start. Pure.

A device plugin may answer with environment or mounts, and they reach a container mixed with what its image and its
pod's author wrote. The difference is in the kubelet's checkpoint: every answer with the pod's uid and the
container's name, on disk before a container of that pod is made. Which pod and container it makes, the engine says in
annotations that it sets over those of any other author. So a request is an allocation when the kubelet's checkpoint
says the same of this very container. Nothing here relies on a secret: a copied id is no allocation, because its entry
names another pod.

A device id means something for its own resource only: "0" of a network plugin is not a GPU. Ids count for resources of
the GPU vendors' domains; for any other resource, what its plugin answered counts.

Source: Kubernetes pkg/kubelet/cm/devicemanager/checkpoint (1.20 to 1.36, and the form before); kubelet
deviceplugin/v1beta1 api.proto, ContainerAllocateResponse; containerd internal/cri/annotations (1.6 to 2.3); CRI-O
server/container_create.go, which adds the kubelet's labels last; podman libpod/container_internal_common.go.
"""

from fairlead.model import replica
from fairlead.model.container.visibledevices import VOLUME_ROOT

_IDENTITIES = (
    ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.container-name"),
    ("io.kubernetes.pod.uid", "io.kubernetes.container.name"),
)
_DOMAINS = ("nvidia.com", "fairlead.dev")
"""Of resources whose device ids are GPUs, beside the vendor of the operator's default kind."""
_WORDS = frozenset({"all", "none", "void"})
"""Of the grammar of requests: no device is called so."""
_MANAGER = "io.container.manager"
"""Podman and CRI-O write it. Podman copies an image's annotations into the runtime spec, and writes this one only where
the image has not: so an identity that stands beside it may come from the image."""
_CRIO_ID = "io.kubernetes.cri-o.ContainerID"
"""CRI-O writes the id that it gives the runtime. No image knows it: engines draw it when they make a container."""
_WHOLE = "GPU-"
_UUIDS = (_WHOLE, "MIG-")
_ENVS, _MOUNTS, _NOTES, _CDI, _KEY, _VALUE = 1, 2, 4, 5, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Field numbers of the answer, and the wire types of protobuf."""


class Entry:
    """What one container was given of one resource."""

    __slots__ = ("answer", "container", "ids", "pod_uid", "resource")

    def __init__(self, whose: tuple[str, str, str], ids: frozenset[str], answer: str) -> None:
        """Take the pod's uid, the container's name and the resource's."""
        self.pod_uid, self.container, self.resource = whose
        self.ids = ids
        """The kubelet's, a shared device's without its number."""
        self.answer = answer
        """The plugin's, as the kubelet keeps it: ContainerAllocateResponse in base64."""


class Allocations:
    """Where entries come from; these are of a node without a kubelet."""

    problem = ""
    """Why their content is not known."""

    def entries(self) -> list[Entry]:
        """Return everything that is given on this node. Raises: nothing; what is wrong is the problem."""
        return []


class Reading:
    """How a request may be written, and whose resources are GPUs."""

    __slots__ = ("domains", "prefixes", "variables")

    def __init__(self, variables: tuple[str, ...], prefixes: tuple[str, ...], vendor: str) -> None:
        """Take the names of variables and the beginnings of annotations that hold requests, and the kinds' vendor."""
        self.variables = variables
        self.prefixes = prefixes
        self.domains = {vendor, *_DOMAINS}


class View:
    """The allocations as they concern one container."""

    __slots__ = ("_reading", "_strangers", "given", "is_kept", "is_known", "problem")

    def __init__(self, allocations: Allocations, identity: tuple[str, str], reading: Reading) -> None:
        """Take who it is, as `identify` says."""
        entries = allocations.entries()
        own = [entry for entry in entries if identity[0] and (entry.pod_uid, entry.container) == identity]
        self.is_known = bool(identity[0])
        self.is_kept = bool(entries)
        """Whether a kubelet keeps a checkpoint here."""
        self.problem = allocations.problem
        self._reading = reading
        try:
            self.given = frozenset(word for entry in own for word in _names(entry, reading))
        except ValueError as error:
            self.problem, self.given = f"the kubelet's entry of this container {error}", frozenset()
        # Containers of one pod may share a GPU: a kubelet hands an init container's on to the next one.
        self._strangers = [entry for entry in entries if not identity[0] or entry.pod_uid != identity[0]]

    def covers(self, words: list[str]) -> bool:
        """Whether all that is asked for was given to this container."""
        return bool(words) and self.given.issuperset(words)

    def find_doubt(self, words: list[str]) -> str:
        """Return why this is not the allocation, where more is known than the lack of a record."""
        if self.problem:
            return self.problem
        missing = [word for word in words if word not in self.given]
        return f"{', '.join(missing)} was not allocated to this container" if self.is_known and missing else ""

    def find_clash(self, words: list[str]) -> str:
        """Return what may be another pod's of what is asked for; an index and `all` may be any pod's."""
        others = self._others()
        return next((word for word in words if word not in self.given and not _is_free(word, others)), "")

    def _others(self) -> frozenset[str]:
        """Return what other pods hold, as words of a request; "?" for what cannot be read."""
        found: set[str] = set()
        for entry in self._strangers:
            try:
                found.update(word.rpartition("=")[2] for word in _names(entry, self._reading))
            except ValueError:
                found.add("?")
            found.update(one for one in entry.ids if one.startswith(_UUIDS))
        return frozenset(found)


def _is_free(word: str, others: frozenset[str]) -> bool:
    name = word.rpartition("=")[2]
    if not others:
        return True
    # Names do not say whose the parts of a whole GPU are, nor which GPU an index or a plugin's own name means.
    is_parted = name.startswith(_WHOLE) and any(not other.startswith(_WHOLE) for other in others)
    is_told = all(other.startswith(_UUIDS) for other in others)
    return is_told and name.startswith(_UUIDS) and name not in others and not is_parted


def identify(annotations: dict[str, str], container_id: str = "") -> tuple[str, str]:
    """Return the pod's uid and the container's name; empty where no engine said so, or two say different things.

    Args: container_id: what the engine calls the container on the runtime's command line; CRI-O and podman differ here.
    """
    is_crio = bool(container_id) and annotations.get(_CRIO_ID) == container_id
    if _MANAGER in annotations and not is_crio:
        return "", ""
    pairs = ((annotations.get(uid, ""), annotations.get(name, "")) for uid, name in _IDENTITIES)
    found = {pair for pair in pairs if all(pair)}
    return found.pop() if len(found) == 1 else ("", "")


def parse(document: object) -> list[Entry]:
    """Read a decoded checkpoint. Raises: ValueError: it is none."""
    data = document.get("Data") if isinstance(document, dict) else None
    items = data.get("PodDeviceEntries", ()) if isinstance(data, dict) else ()
    if not isinstance(items, list | None):
        raise ValueError("is not a checkpoint of a kubelet's device manager")  # noqa: TRY004  the bytes are wrong
    return [_entry(item) for item in items or ()]


def _entry(item: object) -> Entry:
    if not isinstance(item, dict) or not isinstance(item.get("PodUID"), str):
        raise ValueError("has an entry without a pod")  # noqa: TRY004  the bytes are wrong, not a caller's type
    held = item.get("DeviceIDs")
    lists = list(held.values()) if isinstance(held, dict) else [held]
    ids = [replica.origin(str(one)) for some in lists if isinstance(some, list) for one in some]
    whose = (item["PodUID"], str(item.get("ContainerName")), str(item.get("ResourceName")))
    return Entry(whose, frozenset(ids), str(item.get("AllocResp") or ""))


def _names(entry: Entry, reading: Reading) -> list[str]:
    """Return everything by which a request may name what an entry gives. Raises: ValueError: its answer is damaged."""
    ids = entry.ids - _WORDS if entry.resource.partition("/")[0] in reading.domains else ()
    return [*_words(entry.answer, reading), *ids]


def _words(answer: str, reading: Reading) -> list[str]:
    """Return how a plugin's answer names devices: words of variables and annotations, names of mounts and of CDI.

    Raises: ValueError.
    """
    found = []
    # Loading it costs half a millisecond, for containers that have an answer only.
    import binascii

    data = binascii.a2b_base64(answer)
    for number, part in _fields(data):
        pair = dict(_fields(part)) if number in {_ENVS, _MOUNTS, _NOTES, _CDI} else {}
        key = pair.get(_KEY, b"").decode()
        if number == _CDI:
            found.append(key)
        elif (number == _ENVS and key in reading.variables) or (number == _NOTES and key.startswith(reading.prefixes)):
            found += [word.strip() for word in pair.get(_VALUE, b"").decode().split(",")]
        elif number == _MOUNTS and key.startswith(VOLUME_ROOT):
            found.append(key[len(VOLUME_ROOT) :].strip("/"))
    # With mounts, the variable says only where they are.
    return [word for word in found if word and not word.startswith("/")]


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """Return the number and content of each field that has bytes. Raises: ValueError: it is not a message."""
    found = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            found.append((tag >> 3, data[at : at + size]))
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("has an answer that is not a message")
    if at > len(data):
        raise ValueError("has an answer that ends too soon")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        value |= (data[place] & 0x7F) << shift
        shift += 7
        if not data[place] & 0x80:
            return value, place + 1
    raise ValueError("has an answer that ends too soon")
