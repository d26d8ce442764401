"""Judges volumes whose files are values, and says which files they have. Pure.

A volume of a ConfigMap, of the pod's own fields, or of several sources. Those of one Secret are in `secret`.
Source: kubernetes pkg/apis/core/validation (validateConfigMapVolumeSource, validateProjectedVolumeSource).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fairlead.plan.pod.values import downward, secret
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.source import KeyToPath
from fairlead.wire.kubernetes.pod.volume import DownwardAPIFile, ProjectedVolume, SecretVolume

_MODE: Final = 0o644


def is_of_values(volume: core.Volume) -> bool:
    """Return whether a volume's files are values, which the kubelet writes into memory."""
    return any((volume.secret, volume.config_map, volume.downward_api, volume.projected))


def problems(path: str, volume: core.Volume, spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong with a volume of values; that of one Secret is judged elsewhere."""
    taken: secret.Folder = {}
    if (mapped := volume.config_map) is not None:
        where = f"{path}.configMap"
        if not mapped.name:
            yield f"{where}.name: Required value"
        yield from secret.mode_problems(f"{where}.defaultMode", mapped.default_mode)
        yield from secret.item_problems(where, mapped.items, taken)
    if (facts := volume.downward_api) is not None:
        where = f"{path}.downwardAPI"
        yield from secret.mode_problems(f"{where}.defaultMode", facts.default_mode)
        yield from _fact_problems(where, facts.items, spec, taken)
    if volume.projected is not None:
        yield from _projected_problems(f"{path}.projected", volume.projected, spec, taken)


def _projected_problems(
    where: str, several: ProjectedVolume, spec: core.PodSpec, taken: secret.Folder
) -> Iterator[str]:
    yield from secret.mode_problems(f"{where}.defaultMode", several.default_mode)
    for index, source in enumerate(several.sources):
        place = f"{where}.sources[{index}]"
        given = [one for one in (source.secret, source.config_map, source.downward_api) if one is not None]
        if len(given) != 1:
            yield f"{place}: Required value: one source that we offer (secret, configMap, downwardAPI)"
        for name, one in (("secret", source.secret), ("configMap", source.config_map)):
            if one is not None:
                if not one.name:
                    yield f"{place}.{name}.name: Required value"
                yield from secret.item_problems(f"{place}.{name}", one.items, taken)
        if source.downward_api is not None:
            yield from _fact_problems(f"{place}.downwardAPI", source.downward_api.items, spec, taken)


def _fact_problems(
    path: str, items: Sequence[DownwardAPIFile], spec: core.PodSpec, taken: secret.Folder
) -> Iterator[str]:
    for index, one in enumerate(items):
        where = f"{path}.items[{index}]"
        yield from secret.path_problems(where, one.path, taken)
        yield from secret.mode_problems(f"{where}.mode", one.mode)
        if (one.field_ref is None) == (one.resource_field_ref is None):
            yield f"{where}: Required value: one of fieldRef and resourceFieldRef"
        if one.field_ref is not None:
            yield from downward.field_problems(f"{where}.fieldRef", one.field_ref, is_file=True)
        if one.resource_field_ref is not None:
            yield from downward.resource_problems(
                f"{where}.resourceFieldRef", one.resource_field_ref, spec, is_file=True
            )


def secret_names(volume: core.Volume) -> Iterator[str]:
    """Yield the Secrets that a projected volume takes files from."""
    for one in volume.projected.sources if volume.projected is not None else ():
        if one.secret is not None:
            yield one.secret.name


def map_names(spec: core.PodSpec) -> tuple[str, ...]:
    """Return the names of the ConfigMaps that a pod's containers take something from."""
    return tuple(dict.fromkeys(_map_names(spec)))


def _map_names(spec: core.PodSpec) -> Iterator[str]:
    for one in spec.volumes:
        if one.config_map is not None:
            yield one.config_map.name
        for source in one.projected.sources if one.projected is not None else ():
            if source.config_map is not None:
                yield source.config_map.name
    for item in (*spec.init_containers, *spec.containers):
        yield from (one.config_map_ref.name for one in item.env_from if one.config_map_ref is not None)
        sources = (one.value_from.config_map_key_ref for one in item.env if one.value_from is not None)
        yield from (one.name for one in sources if one is not None)


def files(
    pod: core.Pod,
    volume: core.Volume,
    *,
    secrets: Mapping[str, secret.Values],
    maps: Mapping[str, secret.Values],
    facts: downward.Facts,
) -> tuple[secret.File, ...]:
    """Return the files of a volume of values.

    Args:    secrets, maps: those that are there, by name; of maps the bytes of each key.
    Raises:  NotFound (`CreateContainerConfigError`): its containers have to wait.
    """
    namespace = pod.metadata.namespace
    if volume.secret is not None:
        return secret.files(volume.secret, secrets, namespace)
    if (mapped := volume.config_map) is not None:
        return _of_map(mapped.name, mapped.items, mapped.default_mode, maps, namespace, optional=mapped.optional)
    if volume.downward_api is not None:
        return _of_facts(pod, volume.downward_api.items, volume.downward_api.default_mode, facts)
    found: dict[str, secret.File] = {}
    several = volume.projected
    for one in several.sources if several is not None else ():
        mode = several.default_mode if several is not None else None
        part: tuple[secret.File, ...] = ()
        if one.secret is not None:
            source = SecretVolume(
                secret_name=one.secret.name, items=one.secret.items, default_mode=mode, optional=one.secret.optional
            )
            part = secret.files(source, secrets, namespace)
        elif one.config_map is not None:
            wanted = one.config_map
            part = _of_map(wanted.name, wanted.items, mode, maps, namespace, optional=wanted.optional)
        elif one.downward_api is not None:
            part = _of_facts(pod, one.downward_api.items, mode, facts)
        found.update({file.path: file for file in part})
    return tuple(found.values())


def _of_map(
    name: str,
    items: Sequence[KeyToPath],
    mode: int | None,
    maps: Mapping[str, secret.Values],
    namespace: str,
    *,
    optional: bool,
) -> tuple[secret.File, ...]:
    source = SecretVolume(
        secret_name=name, items=tuple(items), default_mode=_MODE if mode is None else mode, optional=optional
    )
    return secret.files(source, maps, namespace, kind=secret.CONFIG_MAP)


def _of_facts(
    pod: core.Pod, items: Sequence[DownwardAPIFile], mode: int | None, facts: downward.Facts
) -> tuple[secret.File, ...]:
    found = []
    for one in items:
        text = ""
        if one.field_ref is not None:
            text = downward.field_value(pod, one.field_ref.field_path, facts)
        elif one.resource_field_ref is not None:
            text = downward.resource_value(pod.spec, None, one.resource_field_ref, facts)
        chosen = next(given for given in (one.mode, mode, _MODE) if given is not None)
        found.append(secret.File(path=one.path, data=text.encode(), mode=chosen))
    return tuple(found)
