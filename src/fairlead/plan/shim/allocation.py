"""Who was given what, as the node's kubelet wrote it down. Pure; the shim asks it at every container's start.

A device plugin may answer with environment or mounts, and they reach a container mixed with what its image and its
pod's author wrote. What tells them apart is in the kubelet's checkpoint: every answer with the pod's uid and the
container's name, on disk before a container of that pod is made. Which pod and container it makes, the engine says in
annotations that it sets over everybody else's. So a request is an allocation when the kubelet's books say the same of
this very container. Nothing here is a secret: what is copied from another pod is still said of that other one.

Source: Kubernetes pkg/kubelet/cm/devicemanager/checkpoint (1.20 to 1.36, and the form before); kubelet
deviceplugin/v1beta1 api.proto, ContainerAllocateResponse; containerd internal/cri/annotations (1.6 to 2.3); CRI-O
server/container_create.go, which adds the kubelet's labels last.
"""

VOLUME_ROOT = "/var/run/nvidia-container-devices/"
_IDENTITIES = (
    ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.container-name"),
    ("io.kubernetes.pod.uid", "io.kubernetes.container.name"),
)
_WHOLE = "GPU-"
_UUIDS = (_WHOLE, "MIG-")
_ENVS, _MOUNTS, _KEY, _VALUE = 1, 2, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Field numbers of the answer, and the wire types of protobuf."""


class Entry:
    """What one container was given of one resource."""

    __slots__ = ("answer", "container", "ids", "pod_uid")

    def __init__(self, pod_uid: str, container: str, ids: frozenset[str], answer: str) -> None:
        self.pod_uid = pod_uid
        self.container = container
        self.ids = ids
        """The kubelet's, without the number behind those of shared devices."""
        self.answer = answer
        """The plugin's, as the kubelet keeps it: ContainerAllocateResponse in base64."""


class Allocations:
    """Where entries come from; these are of a node without a kubelet."""

    problem = ""
    """Why nobody knows what is in them."""

    def entries(self) -> list[Entry]:
        """Return everything that is given on this node. Raises: nothing; what is wrong is the problem."""
        return []


class View:
    """The books as they concern one container."""

    __slots__ = ("given", "is_known", "others", "problem")

    def __init__(self, books: Allocations, identity: tuple[str, str], variables: tuple[str, ...]) -> None:
        """Take who it is, as `identify` says, and the names that may hold a request."""
        entries = books.entries()
        own = [entry for entry in entries if identity[0] and (entry.pod_uid, entry.container) == identity]
        self.is_known = bool(identity[0])
        self.problem = books.problem
        try:
            words = [word for entry in own for word in _words(entry.answer, variables)]
            self.given = frozenset([*words, *(one for entry in own for one in entry.ids)])
        except ValueError as error:
            self.problem, self.given = f"the kubelet's entry of this container {error}", frozenset()
        # Containers of one pod may share a GPU: a kubelet hands an init container's on to the next one.
        strangers = [entry for entry in entries if not identity[0] or entry.pod_uid != identity[0]]
        self.others = frozenset(one for entry in strangers for one in entry.ids if one.startswith(_UUIDS))

    def covers(self, words: list[str]) -> bool:
        """Whether all that is asked for was given to this container."""
        return bool(words) and self.given.issuperset(words)

    def find_doubt(self, words: list[str]) -> str:
        """Return why this is not the allocation, where more is known than that nobody said so."""
        if self.problem:
            return self.problem
        missing = [word for word in words if word not in self.given]
        return f"{', '.join(missing)} was not allocated to this container" if self.is_known and missing else ""

    def find_clash(self, words: list[str]) -> str:
        """Return what may be another pod's of what is asked for; an index and `all` may be anybody's."""
        return next((word for word in words if word not in self.given and not self._is_free(word)), "")

    def _is_free(self, word: str) -> bool:
        name = word.rpartition("=")[2]
        if not self.others:
            return True
        # Whose the parts of a whole GPU are, cannot be told from names.
        is_parted = name.startswith(_WHOLE) and any(not other.startswith(_WHOLE) for other in self.others)
        return name.startswith(_UUIDS) and name not in self.others and not is_parted


def identify(annotations: dict[str, str]) -> tuple[str, str]:
    """Return the pod's uid and the container's name; empty where no engine said so, or two say different things."""
    pairs = ((annotations.get(uid, ""), annotations.get(name, "")) for uid, name in _IDENTITIES)
    found = {pair for pair in pairs if all(pair)}
    return found.pop() if len(found) == 1 else ("", "")


def parse(document: object) -> list[Entry]:
    """Read a decoded checkpoint. Raises: ValueError: it is none."""
    data = document.get("Data") if isinstance(document, dict) else None
    items = data.get("PodDeviceEntries", ()) if isinstance(data, dict) else ()
    if not isinstance(items, list | None):
        raise ValueError("is no checkpoint of a kubelet's device manager")  # noqa: TRY004  the bytes are wrong
    return [_entry(item) for item in items or ()]


def _entry(item: object) -> Entry:
    if not isinstance(item, dict) or not isinstance(item.get("PodUID"), str):
        raise ValueError("has an entry without a pod")  # noqa: TRY004  the bytes are wrong, not a caller's type
    held = item.get("DeviceIDs")
    lists = list(held.values()) if isinstance(held, dict) else [held]
    ids = [str(one).partition("::")[0] for some in lists if isinstance(some, list) for one in some]
    return Entry(item["PodUID"], str(item.get("ContainerName")), frozenset(ids), str(item.get("AllocResp") or ""))


def _words(answer: str, variables: tuple[str, ...]) -> list[str]:
    """Return how a plugin's answer names devices: words of the variables, names of the mounts. Raises: ValueError."""
    found = []
    # Loading it costs half a millisecond, for containers that have an answer only.
    data: bytes = __import__("binascii").a2b_base64(answer)
    for number, part in _fields(data):
        pair = dict(_fields(part)) if number in {_ENVS, _MOUNTS} else {}
        key = pair.get(_KEY, b"").decode()
        if number == _ENVS and key in variables:
            found += [word.strip() for word in pair.get(_VALUE, b"").decode().split(",")]
        elif number == _MOUNTS and key.startswith(VOLUME_ROOT):
            found.append(key[len(VOLUME_ROOT) :].strip("/"))
    # With mounts, the variable says only where they are.
    return [word for word in found if word and not word.startswith("/")]


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """Return the number and content of each field that has bytes. Raises: ValueError: it is no message."""
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
            raise ValueError("has an answer that is no message")
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
