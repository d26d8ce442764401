"""Reads the configuration file of NVIDIA's device plugin, and names every wrong field by its path.

`read` goes through the whole file and returns every problem it found, so that a person mends a file once and not once a
field. What works with NVIDIA's plugin works here, with one difference: a key that nothing reads is an error, with the
key that was meant, since it does not do what its writer believes.
Source: NVIDIA k8s-device-plugin, api/config/v1 (config.go, flags.go, replicas.go, resources.go).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.wire.nvidia import pluginconfig
from fairlead.wire.nvidia.pluginconfig import DeviceChoice, FlagValue, NamingRule, Own, PluginConfig, Replicas, Sharing
from fairlead_cdi import errors as cdi_errors

LARGEST_BYTES: Final = 1 << 20
"""As much as a ConfigMap holds."""
MOST_REPLICAS: Final = 16_384
"""Of one device: each is a line of 60 bytes in every list that the kubelet gets, and a resource has one list."""
_MOST_PROBLEMS: Final = 20
_LONGEST_SHOWN: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_INDEX: Final = re.compile(r"[0-9]{1,4}(?::[0-9]{1,4})?")
_XID: Final = re.compile(r"[1-9][0-9]{0,3}")
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,120}")
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""Source: Go strconv.ParseBool, which NVIDIA's flags are read with."""


def parse(data: str | bytes, *, source: str) -> PluginConfig:
    """Read a file. Args: source: its name, for messages. Raises: Invalid, with every problem in `problems`."""
    config, problems = read(data)
    if problems:
        shown = "; ".join(problems[:_MOST_PROBLEMS])
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        hint = "`fairlead agent check FILE` says what a file does"
        raise errors.Invalid(
            f"{source}: {shown}{more}", reason="PluginConfigInvalid", hint=hint, problems=list(problems)
        )
    return config


def read(data: str | bytes) -> tuple[PluginConfig, tuple[str, ...]]:
    """Return what a file says and what is wrong with it, each with its path; where something is, what is right."""
    reader = _Reader()
    try:
        plain = _decode(data)
    except errors.Invalid as error:
        return PluginConfig(), (error.message,)
    config = reader.config(plain)
    return config, tuple(reader.problems)


def flag_value(flag: pluginconfig.Flag, text: str, *, named: str) -> FlagValue:
    """Read a flag's value as the command line or the environment gives it. Raises: Invalid, naming `named`."""
    reader = _Reader()
    value = reader.flag(flag, _boolean(text) if flag.kind is bool else text, named)
    if reader.problems or value is None:
        raise errors.Invalid(reader.problems[0], reason="SettingInvalid")
    return value


def _boolean(text: str) -> bool | str:
    return True if text in _TRUE else False if text in _FALSE else text


def _decode(data: str | bytes) -> Any:
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    if len(raw) > LARGEST_BYTES:
        raise _invalid(f"it has {len(raw)} bytes, the limit is {LARGEST_BYTES}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8: byte {error.start}") from error
    if text.lstrip().startswith("{"):  # YAML would refuse the tabs that JSON allows
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    parts = [part for part in re.split(r"(?m)^---(?=\s|$)", text) if _says_something(part)]
    if len(parts) > 1:
        raise _invalid("it holds several YAML documents, and only one configuration is read")
    from fairlead_cdi import yamlfile  # PyYAML, which most agents never need

    try:
        return yamlfile.decode_yaml(text.encode())
    except cdi_errors.DocumentError as error:
        raise _invalid(str(error)) from error


def _says_something(part: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in part.splitlines())


def _invalid(message: str) -> errors.Invalid:
    return errors.Invalid(message, reason="PluginConfigInvalid")


def _shown(value: object) -> str:
    """Return the beginning of a value; YAML's references make small files of values too large to be written out.

    A value may also refer to itself.
    """
    text = ""
    # The encoder's own check for circles raises where one is found; without it the text goes on, and is cut off.
    for part in json.JSONEncoder(default=str, ensure_ascii=False, check_circular=False).iterencode(value):
        text += part
        if len(text) > _LONGEST_SHOWN:
            return f"{text[:_LONGEST_SHOWN]}…"
    return text


class _Reader:
    """Collects problems while it reads; what is wrong is left out of what it returns."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def config(self, plain: Any) -> PluginConfig:
        if plain is None:
            return PluginConfig()  # an empty file asks for nothing
        if not isinstance(plain, dict):
            self._wrong("", plain, "a map with version, flags, resources, sharing")
            return PluginConfig()
        if plain.get("kind") == "ConfigMap" and isinstance(plain.get("data"), dict):
            names = ", ".join(f'"{name}"' for name in plain["data"])
            self._add("", f"it is a ConfigMap: give one of the files in its data ({names})")
            return PluginConfig()
        top = self._map(plain, "", ("version", "flags", "resources", "sharing", "imex", pluginconfig.OURS))
        self._version(top.get("version"))
        resources = self._map(top.get("resources"), "resources", ("gpus", "mig"))
        sharing = self._map(top.get("sharing"), "sharing", ("timeSlicing", "mps"))
        imex = self._map(top.get("imex"), "imex", ("channelIDs", "required"))
        return PluginConfig(
            flags=dict(self._flags(top.get("flags"))),
            gpus=tuple(self._naming(resources.get("gpus"), "resources.gpus")),
            mig=tuple(self._naming(resources.get("mig"), "resources.mig")),
            time_slicing=self._sharing(sharing.get("timeSlicing"), "sharing.timeSlicing", fails_above_one=False),
            mps=self._sharing(sharing.get("mps"), "sharing.mps", fails_above_one=True),
            imex_channels=self._channels(imex.get("channelIDs"), "imex.channelIDs"),
            imex_required=self._bool(imex.get("required"), "imex.required"),
            own=self._own(top.get(pluginconfig.OURS)),
        )

    # the parts

    def _version(self, value: Any) -> None:
        if value is not None and value not in ("", pluginconfig.VERSION):
            self._wrong("version", value, f'"{pluginconfig.VERSION}", the only version there is')

    def _own(self, value: Any) -> Own:
        own = self._map(value, pluginconfig.OURS, ("sharing", "claims", "health"))
        path = f"{pluginconfig.OURS}.sharing"
        sharing = self._map(own.get("sharing"), path, ("differentGPUs", "mpsAmounts"))
        amounts, place = sharing.get("mpsAmounts"), f"{path}.mpsAmounts"
        found = self._map(amounts, place, ("devices",))
        health = self._map(own.get("health"), f"{pluginconfig.OURS}.health", ("xids",))
        claims, claims_at = own.get("claims"), f"{pluginconfig.OURS}.claims"
        claimed = self._map(claims, claims_at, ("devices",))
        return Own(
            different_gpus=self._bool(sharing.get("differentGPUs"), f"{path}.differentGPUs") or False,
            mps_amounts=None if amounts is None else self._devices(found.get("devices"), f"{place}.devices"),
            claims=None
            if claims is None
            else self._devices(claimed.get("devices"), f"{claims_at}.devices", with_addresses=True),
            xids=dict(self._xids(health.get("xids"), f"{pluginconfig.OURS}.health.xids")),
        )

    def _xids(self, value: Any, path: str) -> Iterator[tuple[int, str]]:
        if value is not None and not isinstance(value, dict):
            self._wrong(path, value, "a map of XIDs, as {94: reset}")
            return
        offered = ", ".join(pluginconfig.XID_ACTIONS)
        for key, action in (value or {}).items():
            text = str(key)
            if not _XID.fullmatch(text) or int(text) > pluginconfig.LARGEST_XID:
                self._wrong(path, key, f"an XID, a number from 1 to {pluginconfig.LARGEST_XID}")
            elif action not in pluginconfig.XID_ACTIONS:
                self._wrong(f"{path}.{text}", action, f"offered: {offered}", is_choice=True)
            else:
                yield int(text), action

    def _flags(self, value: Any) -> Iterator[tuple[str, FlagValue]]:
        groups: dict[str, list[str]] = {"": []}
        for flag in pluginconfig.FLAGS:
            group, _, name = flag.key.rpartition(".")
            groups.setdefault(group, []).append(name)
        top = self._map(value, "flags", (*groups[""], *(group for group in groups if group)))
        for group, names in groups.items():
            path = f"flags.{group}" if group else "flags"
            found = self._map(top.get(group), path, names) if group else top
            for name in names:
                flag = pluginconfig.BY_KEY[f"{group}.{name}" if group else name]
                read = self.flag(flag, found.get(name), f"{path}.{name}")
                if read is not None:
                    yield flag.key, read

    def flag(self, flag: pluginconfig.Flag, value: Any, path: str) -> FlagValue | None:
        """Read one flag's value; None: it is not given, or wrong."""
        if value is None:
            return None
        if flag.kind is bool:
            return self._bool(value, path)
        if flag.key == "gfd.sleepInterval" and isinstance(value, int):
            value = str(value)  # a Go duration, which NVIDIA's file may give as nanoseconds
        if flag.kind is tuple:
            return self._words(value, path, flag.choices)
        if not isinstance(value, str) or "\0" in value:
            self._wrong(path, value, "a text without NUL")
            return None
        if flag.choices and value not in flag.choices and not (value == "" and not flag.setting):
            self._wrong(path, value, f"offered: {', '.join(flag.choices)}", is_choice=True)
            return None
        return value

    def _words(self, value: Any, path: str, choices: tuple[str, ...]) -> tuple[str, ...] | None:
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or not all(isinstance(word, str) for word in listed):
            self._wrong(path, value, "a text or a list of texts")
            return None
        words = tuple(dict.fromkeys(word.strip() for word in listed))
        for word in words:
            if word not in choices:
                self._wrong(path, word, f"offered: {', '.join(choices)}", is_choice=True)
                return None
        return words

    def _naming(self, value: Any, path: str) -> Iterator[NamingRule]:
        for at, item in self._items(value, path):
            entry = self._map(item, at, ("pattern", "name"))
            pattern, name = entry.get("pattern"), self._resource(entry.get("name"), f"{at}.name")
            if not isinstance(pattern, str) or not pattern:
                self._wrong(f"{at}.pattern", pattern, "a product name or profile in which * stands for any text")
            elif name is not None:
                yield NamingRule(pattern=pattern, name=name)

    def _sharing(self, value: Any, path: str, *, fails_above_one: bool) -> Sharing | None:
        if value is None:
            return None
        known = ("renameByDefault", "failRequestsGreaterThanOne", "resources", "strategy")
        below = {name: f"{path}.resources[]" for name in ("replicas", "name", "devices", "rename")}
        found = self._map(value, path, known, elsewhere=below)
        rename = self._bool(found.get("renameByDefault"), f"{path}.renameByDefault")
        fails = self._bool(found.get("failRequestsGreaterThanOne"), f"{path}.failRequestsGreaterThanOne")
        entries = tuple(self._replicas(found.get("resources"), f"{path}.resources"))
        if found.get("strategy"):
            self._wrong(f"{path}.strategy", found["strategy"], "empty, the only strategy there is")
        if not found.get("resources"):
            example = "[{name: nvidia.com/gpu, replicas: 4}]"
            self._add(f"{path}.resources", f"it is missing: it says what is shared, as in {example}")
        return Sharing(
            rename_by_default=bool(rename),
            fails_above_one=fails_above_one if fails is None else fails,
            resources=entries,
        )

    def _replicas(self, value: Any, path: str) -> Iterator[Replicas]:
        for at, item in self._items(value, path):
            entry = self._map(item, at, ("name", "rename", "devices", "replicas"))
            name = self._resource(entry.get("name"), f"{at}.name")
            given = entry.get("rename")
            rename = self._resource(given, f"{at}.rename") if given is not None and given != "" else ""
            devices = self._devices(entry.get("devices"), f"{at}.devices")
            count = entry.get("replicas")
            least = pluginconfig.FEWEST_REPLICAS
            if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= MOST_REPLICAS:
                self._wrong(f"{at}.replicas", count, f"a whole number from {least} to {MOST_REPLICAS}")
            elif name is not None and rename is not None and devices is not None:
                yield Replicas(name=name, rename=rename, devices=devices, replicas=count)

    def _devices(self, value: Any, path: str, *, with_addresses: bool = False) -> DeviceChoice | None:
        if value is None or value == "all":
            return DeviceChoice()
        if isinstance(value, int) and not isinstance(value, bool):
            if value > 0:
                return DeviceChoice(count=value)
            self._wrong(path, value, "a count from 1")
            return None
        if isinstance(value, list) and value:
            names = tuple(str(one) if type(one) in {str, int} else "" for one in value)
            for one, name in zip(value, names, strict=True):
                if with_addresses and _ADDRESS.fullmatch(name):
                    continue
                if not (_INDEX.fullmatch(name) or _UUID.fullmatch(name)):
                    more = ", or the PCI address of a GPU that is passed through, in quotes" if with_addresses else ""
                    self._wrong(path, one, f"an index (0, for MIG devices 0:1) or a UUID (GPU-…, MIG-…){more}")
                    return None
            return DeviceChoice(names=names)
        self._wrong(path, value, '"all", a count, or a list of indices and UUIDs')
        return None

    def _channels(self, value: Any, path: str) -> tuple[int, ...] | None:
        if value is None:
            return None
        if value in ([], [0]) and not any(isinstance(one, bool) for one in value):
            return tuple(value)
        self._wrong(path, value, "[] or [0]")
        return None

    # values

    def _resource(self, value: Any, path: str) -> str | None:
        if not isinstance(value, str) or not value:
            self._wrong(path, value, "a resource's name, nvidia.com/gpu")
            return None
        name = pluginconfig.qualified_name(value)
        domain, _, own = name.partition("/")
        if len(name) > pluginconfig.LONGEST_NAME:
            self._wrong(path, value, f"a name of at most {pluginconfig.LONGEST_NAME} characters with its domain")
            return None
        if not _NAME.fullmatch(own) or not _DOMAIN.fullmatch(domain):
            self._wrong(path, value, "a resource's name: letters, digits, - _ . after DOMAIN/")
            return None
        if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."):
            self._wrong(path, value, "an extended resource: the domain kubernetes.io is Kubernetes' own")
            return None
        return name

    def _bool(self, value: Any, path: str) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self._wrong(path, value, "true or false")
        return None

    def _items(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if value is None:
            return
        if not isinstance(value, list):
            self._wrong(path, value, "a list")
            return
        yield from ((f"{path}[{at}]", item) for at, item in enumerate(value))

    def _map(
        self, value: Any, path: str, known: tuple[str, ...] | list[str], *, elsewhere: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the known fields of a map. Args: elsewhere: where keys belong that often stand here."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(path, value, f"a map with {', '.join(known)}")
            return {}
        found: dict[str, Any] = {}
        # Go reads keys whatever their case.
        exact = {**{name.lower(): name for name in known}, **{name: name for name in known}}
        for key, item in value.items():
            name = exact.get(str(key)) or exact.get(str(key).lower())
            if name is not None:
                found.setdefault(name, item)
                continue
            place = f"{path}.{key}" if path else str(key)
            if elsewhere and key in elsewhere:
                self._add(place, f"it belongs into {elsewhere[key]}")
                continue
            close = errors.closest(str(key)[:_LONGEST_SHOWN], known)
            meant = f'did you mean "{close}"?' if close else f"known here: {', '.join(known)}"
            self._add(place, f"unknown field, {meant}")
        return found

    def _wrong(self, path: str, value: Any, wanted: str, *, is_choice: bool = False) -> None:
        if value is None:
            self._add(path, f"it is missing, wanted is {wanted}")
        elif is_choice:
            self._add(path, f"{_shown(value)} is not offered ({wanted})")
        else:
            self._add(path, f"{_shown(value)} is not {wanted}")

    def _add(self, path: str, problem: str) -> None:
        self.problems.append(f"{path}: {problem}" if path else problem)
