"""Reads which GPUs a container asks for from its runtime spec: annotations, volume mounts, environment.

Three sources, the first that asks wins: CDI annotations, volume mounts, the environment. Each may come from a device
plugin, from the image (podman copies an image's annotations) or from the pod's author, and they cannot be distinguished
by themselves. What the kubelet's checkpoint (`allocation`) says was given to this very container always counts;
annotations that its checkpoint contradicts are refused; for the rest `Policy.image_requests` decides, and even then not
over another pod's devices. Everything ends as fully qualified CDI names, in the order asked, each once (`0,0` is one
GPU). A refusal is a value here, with who must change what; the shim makes an error of it. Only tables of `plan` are
imported: this runs on every container's start.
Source: NVIDIA container toolkit documentation, "Environment variables"; CDI SPEC.md, "Container annotations".
"""

from fairlead.model import cdikind
from fairlead.model.container.visibledevices import VARIABLE, VOLUME_ROOT
from fairlead.plan.cdi import capability, requirement
from fairlead.plan.shim import allocation

MODES = ("auto", "cdi", "env")
IMAGE_REQUESTS = ("ignore", "refuse", "privileged", "honour")
_MIG_ADMIN = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
_EXTRAS = {
    "NVIDIA_GDS": cdikind.class_of(cdikind.KINDS["gds"]),
    "NVIDIA_MOFED": cdikind.class_of(cdikind.KINDS["mofed"]),
    "NVIDIA_GDRCOPY": cdikind.class_of(cdikind.KINDS["gdrcopy"]),
    "NVIDIA_NVSWITCH": cdikind.class_of(cdikind.KINDS["nvswitch"]),
}
_IMEX = "NVIDIA_IMEX_CHANNELS"
NO_ALLOCATIONS = allocation.Allocations()
_ALLOCATED = cdikind.ALLOCATED["nvidia"]
_IMEX_CLASS = cdikind.class_of(cdikind.KINDS["imex"])
_CRIO = "io.kubernetes.cri-o."
"""CRI-O's own marks. It injects what the kubelet asks for itself, and hands on what a pod's author wrote."""


class Policy:
    """What the operator allows; a value of each field is in the operator's file or is the default here."""

    mode = "auto"
    """`cdi`: annotations and volume mounts only; `env`: volume mounts and environment; `auto`: all three."""
    default_kind = cdikind.GPUS["nvidia"]
    """Kind of names that have none, where the agent's own specs do not define them."""
    image_requests = "ignore"
    """What a request in the environment is worth: see `IMAGE_REQUESTS`; `privileged`: only with CAP_SYS_ADMIN."""
    accepts_volume_mounts = False
    checks_allocations = True
    """A request that counts only because the operator says so must not be for what another pod was given; containers
    with CAP_SYS_ADMIN, which monitors have, may ask for anything then."""
    annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    variables: tuple[str, ...] = (VARIABLE,)
    """Names that may hold the request. Of those that the operator added, every one that is set counts, as Swarm sets
    one a resource; NVIDIA_VISIBLE_DEVICES counts where none of them is set."""
    capabilities = capability.ALL
    """What a container may ask for in NVIDIA_DRIVER_CAPABILITIES."""
    checks_requirements = True


class Refusal:
    """Why the container must not start."""

    __slots__ = ("hint", "kind", "message", "reason")

    def __init__(self, kind: str, message: str, *, reason: str, hint: str) -> None:
        self.kind = kind
        """Name of the class in `errors`."""
        self.message = message
        self.reason = reason
        self.hint = hint

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Refusal) and all(getattr(self, k) == getattr(other, k) for k in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # a value with parts, never a key


class Container:
    """The parts of a runtime spec that can ask for devices."""

    __slots__ = ("annotations", "env", "identity", "is_privileged", "mounts")

    def __init__(
        self,
        *,
        env: dict[str, str],
        annotations: dict[str, str],
        mounts: list[str],
        is_privileged: bool,
        container_id: str = "",
    ):
        self.identity = allocation.identify(annotations, container_id)
        self.env = env
        """By name, the first of equal names: what `getenv` gives."""
        self.annotations = annotations
        self.mounts = mounts
        """Destinations of mounts whose source is /dev/null."""
        self.is_privileged = is_privileged
        """CAP_SYS_ADMIN is in the bounding set."""


class Request:
    """What is asked for."""

    __slots__ = ("capabilities", "is_bare", "is_given", "names", "note", "refusal", "requirements", "source", "words")

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        """Fully qualified, each once, in the order asked for; those of `words` by the default kind."""
        self.words: dict[str, str] = {}
        """Devices that were asked for without a kind, by the name that `names` has for them."""
        self.is_given = False
        """All that is asked for is what the kubelet's checkpoint says was given to this container."""
        self.is_bare = False
        """Driver files and control nodes without any GPU (`none`)."""
        self.source = ""
        """`annotations`, `volume mounts`, `allocation` (the environment says what was given), `environment`; two of
        them where channels came by mounts beside GPUs; empty: nothing is asked for."""
        self.note = ""
        """A request that was not honoured, for the log."""
        self.refusal: Refusal | None = None
        self.capabilities: frozenset[str] | None = None
        """Parts of the driver to show; None: all that the spec has."""
        self.requirements: tuple[tuple[str, str], ...] = ()
        """NVIDIA_REQUIRE_* to hold the driver to: variable and value, by variable."""

    @property
    def is_empty(self) -> bool:
        """Whether the container stays as it is."""
        return not self.names and not self.is_bare and self.refusal is None


def read(document: dict[str, object], container_id: str = "") -> Container:
    """Pick the parts out of a decoded config.json; misshapen parts count as absent, the injection refuses them.

    Args: container_id: what the engine calls the container on the runtime's command line.
    """
    process = _object(document.get("process"))
    env: dict[str, str] = {}
    for item in _list(process.get("env")):
        if isinstance(item, str):
            name, _, value = item.partition("=")
            env.setdefault(name, value)
    annotations = {key: text for key, text in _object(document.get("annotations")).items() if isinstance(text, str)}
    mounts = [_object(item) for item in _list(document.get("mounts"))]
    bounding = _list(_object(process.get("capabilities")).get("bounding"))
    return Container(
        env=env,
        annotations=annotations,
        mounts=[str(item.get("destination")) for item in mounts if item.get("source") == "/dev/null"],
        is_privileged="CAP_SYS_ADMIN" in bounding,
        container_id=container_id,
    )


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def decide(container: Container, policy: Policy, allocations: allocation.Allocations = NO_ALLOCATIONS) -> Request:
    """Say what the container gets; every refusal and everything ignored is in the value.

    Args: allocations: what was given to whom; the checkpoint is read only where an answer depends on them.
    """
    request = Request()
    if policy.mode != "env":
        _from_annotations(container, policy, request, allocations)
    if request.is_empty:
        _from_mounts(container, policy, request, allocations)
    if _leaves_gpus_open(request, policy) and policy.mode != "cdi":
        _from_environment(container, policy, request, allocations)
    if not request.is_empty and request.refusal is None:
        _qualify(container, policy, request)
    return request


def _leaves_gpus_open(request: Request, policy: Policy) -> bool:
    """Whether no GPU has been asked for: nothing at all, or channels by mounts, which come beside GPUs."""
    if request.source != "volume mounts":
        return request.is_empty and not request.source
    channels = f"{_vendor(policy)}/{_IMEX_CLASS}="
    names = request.names
    return request.refusal is None and bool(names) and all(name.startswith(channels) for name in names)


def _view(container: Container, policy: Policy, allocations: allocation.Allocations) -> allocation.View:
    reading = allocation.Reading(policy.variables, policy.annotation_prefixes, _vendor(policy))
    return allocation.View(allocations, container.identity, reading)


def _is_allowed(container: Container, policy: Policy) -> bool:
    """Whether the operator lets a request count that no kubelet allocated."""
    return policy.image_requests == "honour" or (policy.image_requests == "privileged" and container.is_privileged)


def _from_annotations(
    container: Container, policy: Policy, request: Request, allocations: allocation.Allocations
) -> None:
    if any(key.startswith(_CRIO) for key in container.annotations):
        return
    keys = sorted(key for key in container.annotations if key.startswith(policy.annotation_prefixes))
    names = [name for key in keys for name in container.annotations[key].split(",")]
    if not names:
        return
    view = _view(container, policy, allocations)
    shown = f"annotation {keys[0]} asks for {', '.join(names)}"
    counts = view.covers(names) or not (policy.checks_allocations and (view.is_kept or view.problem))
    if view.is_known and not counts:
        request.refusal = _unallocated(shown, names, view)
    elif view.is_known or _is_allowed(container, policy):
        request.refusal = (
            None if view.is_known else _find_clash(shown, names, view=view, container=container, policy=policy)
        )
        request.source = "annotations"
        request.names = tuple(dict.fromkeys(names))
    else:
        _pass_over(request, shown, "annotation", "no kubelet's engine made this container", policy=policy)


def _unallocated(shown: str, names: list[str], view: allocation.View) -> Refusal:
    """Return why a pod of this node's kubelet may not have what its annotations say."""
    hint = "ask for GPUs through the allocation (resource limits), or set checkAllocations to false"
    message = f"{shown}, and {view.find_doubt(names)}"
    if view.problem:
        return Refusal("Unavailable", message, reason="AllocationsUnreadable", hint=hint)
    return Refusal("Denied", message, reason="AnnotationNotAllocated", hint=hint)


def _pass_over(request: Request, shown: str, by: str, doubt: str, *, policy: Policy) -> None:
    """Refuse or ignore a request that no kubelet allocated, as the operator says."""
    if policy.image_requests == "refuse":
        request.refusal = Refusal(
            "Denied",
            f"{shown}, and requests by {by} are refused here" + (f": {doubt}" if doubt else ""),
            reason="ImageRequestRefused",
            hint="ask for GPUs through the allocation (resource limits, CDI names), or set imageRequests",
        )
    else:
        request.note = f"{shown}: ignored, {doubt or 'devices come from the allocation only'} (imageRequests)"


def _from_mounts(container: Container, policy: Policy, request: Request, allocations: allocation.Allocations) -> None:
    asked = _requests_of(container.mounts)
    if not asked:
        return
    view = _view(container, policy, allocations)
    is_given = view.covers(asked)
    if not (is_given or policy.accepts_volume_mounts):
        return
    words, names = _mounted(asked, policy)
    request.source = "volume mounts"
    request.is_given = is_given
    _set_words(request, words, policy)
    request.names = tuple(dict.fromkeys([*request.names, *names]))
    if request.names and not is_given:
        shown = f"a mount at {VOLUME_ROOT}{asked[0]}"
        request.refusal = _find_clash(shown, [*words, *names], view=view, container=container, policy=policy)


def _mounted(asked: list[str], policy: Policy) -> tuple[list[str], list[str]]:
    """Return the devices that mounts name by their places below the root: words, and fully qualified names."""
    words, names = [], []
    for rest in asked:
        family, _, tail = rest.partition("/")
        if family == "cdi" and tail:
            # vendor/class/device and vendor/class=device are both in use.
            kind, slash, device = tail.rpartition("/")
            names.append(tail if "=" in tail or not slash else f"{kind}={device}")
        elif family == "imex" and tail:
            names.append(f"{_vendor(policy)}/{_IMEX_CLASS}={tail}")
        else:
            words.append(rest)
    return words, names


def read_answer(env: dict[str, str], mounts: list[str], policy: Policy) -> Request:
    """Read what a device plugin's answer asks a runtime for by variables and mounts; both say the same devices.

    Args: mounts: destinations of mounts whose source is /dev/null.
    """
    request = Request()
    request.is_given = True
    words, names = _mounted(_requests_of(mounts), policy)
    # With mounts, the variable says only where they are.
    told = [word for word in env.get(VARIABLE, "").split(",") if not word.strip().startswith("/")]
    _set_words(request, [*words, *told], policy)
    _add_extras(request, env, policy)
    request.names = tuple(dict.fromkeys([*request.names, *names]))
    return request


def _requests_of(mounts: list[str]) -> list[str]:
    places = [place for place in mounts if place.startswith(VOLUME_ROOT)]
    return [rest for rest in (place[len(VOLUME_ROOT) :].strip("/") for place in places) if rest]


def _find_clash(
    shown: str, words: list[str], *, view: allocation.View, container: Container, policy: Policy
) -> Refusal | None:
    """Return why a request that no kubelet allocated cannot count, though the operator lets such requests count."""
    if not policy.checks_allocations or container.is_privileged:
        return None
    hint = "ask for GPUs through the allocation (resource limits, CDI names), or set checkAllocations to false"
    if view.problem:
        message = f"{shown}, and what other pods were given is not known: {view.problem}"
        return Refusal("Unavailable", message, reason="AllocationsUnreadable", hint=hint)
    clash = view.find_clash(words)
    if not clash:
        return None
    message = f"{shown}, and {clash} is, or may be, what another pod was given"
    return Refusal("Denied", message, reason="AllocatedToAnother", hint=hint)


def is_volume_request(mount: object) -> bool:
    """Whether a mount of the runtime spec is a request and nothing else."""
    entry = _object(mount)
    return entry.get("source") == "/dev/null" and str(entry.get("destination")).startswith(VOLUME_ROOT)


def _from_environment(
    container: Container, policy: Policy, request: Request, allocations: allocation.Allocations
) -> None:
    env = container.env
    set_names = [name for name in policy.variables if name in env]
    used = [name for name in set_names if name != VARIABLE] or set_names
    name = ", ".join(used)
    value = ",".join(env[one] for one in used) if used else "all" if is_legacy(env) else ""
    words = [word for word in (word.strip() for word in value.split(",")) if word]
    wanted = Request()
    _set_words(wanted, words, policy)
    if wanted.is_empty:
        return
    counts = _is_allowed(container, policy)
    view = _view(container, policy, allocations if wanted.names else NO_ALLOCATIONS)
    is_given = view.covers(words)
    shown = f"{name or 'an image without NVIDIA_REQUIRE_CUDA'} asks for {value}"
    if is_given or counts:
        if counts:  # no kubelet allocates these
            _add_extras(wanted, env, policy)
        by = "allocation" if is_given else "environment"
        request.source = f"{request.source}, {by}" if request.source else by
        request.names = tuple(dict.fromkeys([*wanted.names, *request.names]))
        request.words, request.is_bare = wanted.words, wanted.is_bare
        request.is_given = is_given
        if wanted.names and not is_given:
            request.refusal = _find_clash(shown, words, view=view, container=container, policy=policy)
        return
    _pass_over(request, shown, "environment", view.find_doubt(words) if wanted.names else "", policy=policy)


def is_legacy(env: dict[str, str]) -> bool:
    """Whether the image is of the time before NVIDIA_REQUIRE_CUDA: then what it leaves unsaid means `all`."""
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def _set_words(request: Request, words: list[str], policy: Policy) -> None:
    """Read a list of device ids: `void` anywhere means nothing, the first of `all` and `none` decides."""
    asked = [word for word in (word.strip() for word in words) if word]
    if "void" in asked:
        return
    special = next((word for word in asked if word in {"all", "none"}), "")
    if special == "none":
        request.is_bare = True
    else:
        chosen = ["all"] if special else asked
        request.names = tuple(dict.fromkeys(_qualified(word, policy) for word in chosen))
        request.words = {_qualified(word, policy): word for word in chosen if "=" not in word}


def _qualified(word: str, policy: Policy) -> str:
    return word if "=" in word else cdikind.qualified(policy.default_kind, word)


def kinds(request: Request, policy: Policy) -> tuple[str, ...]:
    """Return the kinds that a device without one may be of, the first that has it counts.

    What the kubelet gave is what the agent's specs say it is; what is asked for beside that is the operator's kind.
    """
    usual = (policy.default_kind, _ALLOCATED)
    return usual[::-1] if request.is_given else usual


def resolve(request: Request, policy: Policy, defined: dict[str, object]) -> tuple[str, ...]:
    """Return the names asked for, each of a kind that defines it; what no kind defines stays as it is.

    Args: defined: the fully qualified names in the specs of this machine.
    """
    found = []
    for name in request.names:
        word = request.words.get(name)
        usual = () if word is None else (cdikind.qualified(kind, word) for kind in kinds(request, policy))
        found.append(next((one for one in usual if one in defined), name))
    return tuple(dict.fromkeys(found))


def _vendor(policy: Policy) -> str:
    return policy.default_kind.partition("/")[0]


def _add_extras(request: Request, env: dict[str, str], policy: Policy) -> None:
    """Add what is asked for beside GPUs; only for containers that get some."""
    if not request.names:
        return
    more = [f"{_vendor(policy)}/{cls}=all" for name, cls in _EXTRAS.items() if env.get(name) == "enabled"]
    channels = [part.strip() for part in env.get(_IMEX, "").split(",")]
    # `all` would be every channel of the machine: the peers ignore it too.
    more += [f"{_vendor(policy)}/{_IMEX_CLASS}={part}" for part in channels if part and part != "all"]
    request.names = tuple(dict.fromkeys([*request.names, *more]))


def _qualify(container: Container, policy: Policy, request: Request) -> None:
    """Add what the environment says about the driver; it only narrows, no matter who asked for the devices."""
    env = container.env
    admin = next((name for name in _MIG_ADMIN if env.get(name)), "")
    if admin and not container.is_privileged:
        request.refusal = Refusal(
            "Denied",
            f"{admin}={env[admin]} needs a privileged container",
            reason="MIGAdministrationRefused",
            hint=f"remove {admin}, or let the operator partition the GPU",
        )
        return
    text = env.get(capability.VARIABLE)
    if text is None and request.source.endswith("environment"):
        text = "all" if is_legacy(env) else ""
    if text is not None:
        request.capabilities, wrong = capability.parse_capabilities(text, policy.capabilities)
        if wrong:
            request.refusal = Refusal(
                "Invalid",
                f"{capability.VARIABLE}={text}: {', '.join(wrong)} is not offered here",
                reason="DriverCapabilityUnsupported",
                hint=f"offered: {', '.join(sorted(policy.capabilities))}, all",
            )
            return
    if policy.checks_requirements:
        request.requirements = requirement.stated(env)
