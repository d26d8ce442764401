"""Evaluates NVIDIA_REQUIRE_* against the host's driver and GPUs, with the table of CUDA and driver versions.

A requirement is alternatives apart by spaces, each a set of conditions apart by commas, `driver>=535,brand=tesla`. It
must hold for every GPU that the container gets. The verdict has three values: what is not known (the brand of a GPU,
say) leaves a condition undecided, and an undecided requirement lets the container start. A refusal names both sides and
what to change on either. Nothing is imported here: the runtime shim decides with this on a container's start, the
embedded kubelet and `doctor` with the same.
Source: NVIDIA container toolkit documentation, "Constraints"; CUDA Toolkit 13.2 release notes
(docs.nvidia.com/cuda/cuda-toolkit-release-notes), table 3 "CUDA Toolkit and Corresponding Driver Versions", column
Linux x86_64, and table 2 "Minimum Required Driver Version for CUDA Minor Version Compatibility".
"""

CUDA_DRIVERS: tuple[tuple[str, str], ...] = (
    ("13.2", "595.45.04"),
    ("13.1", "590.44.01"),
    ("13.0", "580.65.06"),
    ("12.9", "575.51.03"),
    ("12.8", "570.26"),
    ("12.7", "565.57.01"),
    ("12.6", "560.28.03"),
    ("12.5", "555.42.02"),
    ("12.4", "550.54.14"),
    ("12.3", "545.23.06"),
    ("12.2", "535.54.03"),
    ("12.1", "530.30.02"),
    ("12.0", "525.60.13"),
    ("11.8", "520.61.05"),
    ("11.7", "515.43.04"),
    ("11.6", "510.39.01"),
    ("11.5", "495.29.05"),
    ("11.4", "470.42.01"),
    ("11.3", "465.19.01"),
    ("11.2", "460.27.03"),
    ("11.1", "455.23"),
    ("11.0", "450.36.06"),
    ("10.2", "440.33"),
    ("10.1", "418.39"),
    ("10.0", "410.48"),
    ("9.2", "396.26"),
    ("9.1", "390.46"),
    ("9.0", "384.81"),
    ("8.0", "367.48"),
    ("7.5", "352.31"),
    ("7.0", "346.46"),
)
"""CUDA version and the first driver that runs all of it, newest first: the table's row of each first release.

There is no CUDA 12.7 toolkit, but its driver reports 12.7 (`nvidia-smi`), so 12.7 has a row.
"""
MINOR_COMPATIBLE: dict[str, str] = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
"""CUDA major and the first driver on which programs of any minor of it start, without its newest features."""

VARIABLES = "NVIDIA_REQUIRE_"
"""Start of the names of variables that hold a requirement."""
UNMET = "DriverRequirementUnmet"
"""Reason of a refusal."""
SWITCH = "NVIDIA_DISABLE_REQUIRE"
"""Variable with which an image's user switches the check off."""
_NOT_OURS = f"{VARIABLES}JETPACK"
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
"""Source: Go strconv.ParseBool, by which the peers read the switch."""
_VERSIONED = (
    "libcuda.so.",
    "libnvidia-ml.so.",
    "libnvidia-encode.so.",
    "libnvidia-glcore.so.",
    "libnvidia-eglcore.so.",
    "libnvidia-ngx.so.",
    "libglxserver_nvidia.so.",
)
"""A library of each part of the driver whose file is named after the driver's version."""
_OPERATORS = ("!=", ">=", "<=", "==", "=", ">", "<")
_PROPERTIES = ("cuda", "driver", "arch", "brand")


class Facts:
    """What is known of the host's driver and of one of its GPUs; empty: not known."""

    __slots__ = ("arch", "brand", "cuda", "driver", "gpu", "is_cuda_floor")

    def __init__(self, *, driver: str = "", cuda: str = "", arch: str = "", brand: str = "", gpu: str = "") -> None:
        self.driver = driver
        self.arch = arch
        """Compute capability."""
        self.brand = brand
        """In NVML's word, `nvidia`."""
        self.gpu = gpu
        """Whose these two are, as a refusal names it."""
        found = "" if cuda else cuda_of_driver(driver)
        self.cuda = cuda or found
        self.is_cuda_floor = bool(found) and _rank(driver)[:1] > _rank(CUDA_DRIVERS[0][1])[:1]
        """A driver newer than the table: it runs this CUDA and perhaps newer."""


def hosts(known: dict[str, list[str]], nodes: list[str], driver: str) -> list[Facts]:
    """Return what a container's requirements are held to: each kind of GPU that it gets once, or the driver alone.

    Args:  known: of the specs' stamps: `driver` → its version and CUDA's; device node → compute capability and brand.
           nodes: paths of the device nodes that it gets.   driver: by the names of its files; empty: not in them.
    """
    version, cuda = known.get("driver") or ["", ""]
    if driver and version != driver:
        known, cuda = {}, ""  # the stamp is of another driver version: its facts are not used
    kinds: dict[tuple[str, ...], str] = {}
    for node in nodes:
        if node in known:
            kinds.setdefault(tuple(known[node]), node)
    driver = driver or version
    found = [Facts(driver=driver, cuda=cuda, arch=a, brand=b, gpu=node) for (a, b), node in kinds.items()]
    return found or [Facts(driver=driver, cuda=cuda)]


def stated(env: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the requirements that a container's environment states, variable and value, by variable.

    None where it switches the check off; one without any text says nothing.
    """
    if env.get(SWITCH) in _TRUE:
        return ()
    names = sorted(name for name in env if name.startswith(VARIABLES) and not name.startswith(_NOT_OURS))
    found = tuple((name, env[name]) for name in names if env[name].strip())
    legacy = _legacy_cuda(env)
    return (("CUDA_VERSION", f"cuda>={legacy}"), *found) if legacy else found


def _legacy_cuda(env: dict[str, str]) -> str:
    """Return the CUDA version, major and minor, that an image from before NVIDIA_REQUIRE_CUDA needs; else empty."""
    if env.get(f"{VARIABLES}CUDA"):
        return ""
    parts = env.get("CUDA_VERSION", "").split(".")[:2]
    return ".".join(parts) if len(parts) == 2 and all(_is_version(part) for part in parts) else ""


def driver_of(paths: list[str]) -> str:
    """Return the driver's version by its files' names, `libcuda.so.550.163.01`; empty: none carries it."""
    names = [path[path.rfind("/") + 1 :] for path in paths]
    for start in _VERSIONED:
        for name in names:
            version = name[len(start) :] if name.startswith(start) else ""
            if "." in version and _is_version(version):
                return version
    return ""


def cuda_of_driver(driver: str) -> str:
    """Return the newest CUDA version that a driver runs by the table; empty: none, or not a version."""
    if not _is_version(driver):
        return ""
    return next((cuda for cuda, first in CUDA_DRIVERS if _rank(driver) >= _rank(first)), "")


def driver_for_cuda(cuda: str) -> str:
    """Return the first driver that runs a CUDA version; empty: the table does not know that version."""
    wanted = _rank(cuda)[:2]
    return next((first for version, first in reversed(CUDA_DRIVERS) if _rank(version) >= wanted), "")


def problem(variable: str, text: str, facts: Facts) -> tuple[str, str] | None:
    """Hold the host to one requirement.

    Returns: None where it is met or cannot be decided; else the message, and which side to change.
    """
    verdicts: list[bool | None] = []
    failed: list[tuple[str, str, str]] = []
    for alternative in text.split():
        met: bool | None = True
        is_about_host = False
        for condition in alternative.split(","):
            if not condition:
                continue
            parsed = _parse(condition)
            if parsed is None:
                hint = "write PROPERTY OPERATOR VALUE, as in cuda>=12.4, in the image's environment"
                return f'{variable}: "{condition}" is not a condition', hint
            if parsed[0] not in _PROPERTIES:
                continue  # the peers drop what they do not know: it neither meets its alternative nor fails it
            is_about_host = True
            verdict = _verdict(*parsed, facts)
            if verdict is False:
                failed.append(parsed)
            met = _and(met, verdict)
        verdicts += [met] if is_about_host else []
    if not verdicts or any(verdict is not False for verdict in verdicts):
        return None
    return _refusal(variable, text, failed, facts)


def is_about_gpu(text: str) -> bool:
    """Whether another GPU of the same host may give another verdict."""
    return any(name in text for name in _PROPERTIES[2:])


def first_problem(requirements: tuple[tuple[str, str], ...], against: list[Facts]) -> tuple[str, str] | None:
    """Hold every one of `hosts` to all that an environment states; see `problem`. What is not known refuses nothing."""
    known = [facts for facts in against if facts.driver or facts.cuda]
    found = (problem(name, text, facts) for facts in known for name, text in requirements)
    return next((one for one in found if one), None)


def _refusal(variable: str, text: str, failed: list[tuple[str, str, str]], facts: Facts) -> tuple[str, str]:
    needs = " or ".join(dict.fromkeys("".join(condition) for condition in failed))
    known = {name: f"{name} {getattr(facts, name)}" for name in _PROPERTIES if getattr(facts, name)}
    of_gpu = [known.pop(name) for name in _PROPERTIES[2:] if facts.gpu and name in known]
    matters = any(name in _PROPERTIES[2:] for name, _, _ in failed)
    has = ", ".join(known.values()) + (f"; {facts.gpu} has {', '.join(of_gpu)}" if of_gpu and matters else "")
    message = f"{variable}={text} is not met: the image needs {needs}, this host has {has}"
    # The remedy is given for the first condition that failed only.
    host, image = _sides(*failed[0], facts)
    sides = [f"on the host: {host}", f"in the image: {image}"]
    if _runs_major(failed, facts.driver):
        sides.append("or set NVIDIA_DISABLE_REQUIRE=true: programs start, those that use newer features fail")
    return message, "; ".join(sides)


def _sides(name: str, operator: str, value: str, facts: Facts) -> tuple[str, str]:
    """Return what would meet a condition on the host, and what in the image."""
    if name == "cuda" and operator in {">=", ">"}:
        first = driver_for_cuda(value)
        host = f"a driver from {first} on" if first else f"a driver that runs CUDA {value}"
        return host, f"an image for CUDA {facts.cuda} or older"
    if name == "driver" and operator in {">=", ">"}:
        return f"a driver from {value} on", f"an image for driver {facts.driver} or older"
    what = "a driver" if name in {"cuda", "driver"} else "a GPU"
    return f"{what} with {name}{operator}{value}", f"an image for {name} {getattr(facts, name)}"


def _runs_major(failed: list[tuple[str, str, str]], driver: str) -> bool:
    """Whether all that fails is a minor version of a CUDA whose programs start on this driver."""
    firsts = [MINOR_COMPATIBLE.get(value.partition(".")[0]) for name, _, value in failed if name == "cuda"]
    return bool(firsts) and all(first and _rank(driver) >= _rank(first) for first in firsts)


def _parse(condition: str) -> tuple[str, str, str] | None:
    found = [(condition.find(operator), operator) for operator in _OPERATORS if operator in condition]
    if not found:
        return None
    # At one place the longest operator counts: `>=` and not `>`.
    place, operator = min(found, key=lambda item: (item[0], -len(item[1])))
    name, value = condition[:place], condition[place + len(operator) :]
    if name in _PROPERTIES[:3] and value[:1] == "v":
        value = value[1:]
    if not name or not value or (name in _PROPERTIES[:3] and not _is_version(value)):
        return None
    return name, operator, value


def _verdict(name: str, operator: str, value: str, facts: Facts) -> bool | None:
    """Return None where it cannot be decided."""
    fact = getattr(facts, name)
    if not fact:
        return None
    if name == "brand":
        # Order between brands means nothing.
        return (fact.lower() == value.lower()) is (operator in {"=", "=="}) if operator in {"=", "==", "!="} else None
    verdict = _compare(_rank(fact), operator, _rank(value))
    if name == "cuda" and facts.is_cuda_floor:
        return True if verdict and operator in {">", ">="} else None
    return verdict


def _compare(fact: tuple[int, ...], operator: str, value: tuple[int, ...]) -> bool:
    width = max(len(fact), len(value))
    left, right = (side + (0,) * (width - len(side)) for side in (fact, value))
    if operator in {"=", "=="}:
        return left == right
    if operator == "!=":
        return left != right
    if operator[0] == "<":
        left, right = right, left
    return left > right or (left == right and operator.endswith("="))


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


_MOST_DIGITS = 9
"""Of one part of a version; Python reads 4,300 at most."""


def _is_version(text: str) -> bool:
    return bool(text) and all(
        part.isdecimal() and part.isascii() and len(part) <= _MOST_DIGITS for part in text.split(".")
    )


def _rank(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal() and len(part) <= _MOST_DIGITS)
