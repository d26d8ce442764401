"""Doors through which text comes that people write: CDI specs, manifests, kubeconfigs, settings, profiles."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from fairlead import errors, settings
from fairlead.plan.compose import gpu, merge, objects, project
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.compose.interpolate import Variables
from fairlead.plan.pod import admission, quota
from fairlead.silicon.sim import machine, profile, root
from fairlead.store.kubernetes import credentials
from fairlead.wire.cdi import stamp
from fairlead.wire.compose import document
from fairlead.wire.kubernetes import core, kubeconfig, manifest
from fairlead.wire.oci import mountcsv
from fairlead.wire.text import ldcache
from fairlead_cdi import directory, emit, inject, lint, parse, yamlfile
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node
from tests.fuzz import hostile, specimen
from tests.fuzz.harness import Door, Feed

OURS: Final = (errors.FairleadError,)


def plain(feed: Callable[[bytes, Path], None]) -> Callable[[Path], contextlib.AbstractAsyncContextManager[Feed]]:
    """Return what opens a door that is a function of bytes and a folder."""

    @contextlib.asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Feed]:
        async def once(data: bytes) -> None:
            feed(data, folder)

        yield once

    return opened


def _assert_same(what: str, said: object, read: object) -> None:
    if said != read:
        raise AssertionError(f"{what} was changed on its way: {said!r:.200} became {read!r:.200}")


COMPOSE: Final = {
    "name": "lab",
    "services": {
        "db": {"image": "x", "healthcheck": {"test": ["CMD", "true"], "interval": "1s"}, "volumes": ["data:/data:ro"]},
        "web": {
            "image": "${IMAGE:-x}",
            "command": "sh -c 'echo $$A'",
            "depends_on": {"db": {"condition": "service_healthy", "required": True}},
            "ports": ["127.0.0.1:8000-8001:80-81/tcp", {"target": 90, "published": "91"}],
            "environment": ["A=b"],
            "ulimits": {"nofile": {"soft": 1, "hard": 2}},
            "extra_hosts": ["a:1.2.3.4"],
            "shm_size": "64m",
            "deploy": {"resources": {"reservations": {"devices": [{"count": 1, "capabilities": ["gpu"]}]}}},
            "gpus": [{"device_ids": ["0"]}],
            "networks": {"front": {"aliases": ["a"]}},
            "tmpfs": ["/t:size=1m"],
        },
    },
    "networks": {"front": {}},
    "volumes": {"data": {}},
}


def _compose(data: bytes, _folder: Path) -> None:
    """Read a Compose file, and make its objects."""
    for one in document.parse(data, "compose.yaml"):
        shaped = project.shaped(Variables({"A": "b"}).put_in_all(one, ""), "compose.yaml")
        whole, remarks = merge.files(merge.files({}, shaped), shaped), Remarks()
        project.check_top(whole, remarks)
        parts: dict[str, Any] = {key: whole.get(key) or {} for key in ("networks", "volumes", "configs", "secrets")}
        services, _ = project.select(whole.get("services") or {}, ())
        found = project.Project(name="lab", services=services, **parts)
        project.needed(found, ())
        objects.make(found, gpu.Machine(total=8, uuids={"0": "GPU-0"}), remarks)


# CDI -----------------------------------------------------------------------------------------------------------------

SPEC: Final = {
    "cdiVersion": "0.7.0",
    "kind": "vendor.example/gpu",
    "annotations": {"vendor.example/note": "text"},
    "devices": [
        {
            "name": "gpu0",
            "annotations": {"vendor.example/note": "text"},
            "containerEdits": {
                "env": ["A=b"],
                "deviceNodes": [
                    {
                        "path": "/dev/gpu0",
                        "hostPath": "/dev/host0",
                        "type": "c",
                        "major": 195,
                        "minor": 0,
                        "fileMode": 438,
                        "permissions": "rw",
                        "uid": 0,
                        "gid": 0,
                    }
                ],
                "mounts": [
                    {"hostPath": "/lib/a", "containerPath": "/lib/b", "type": "bind", "options": ["ro", "rbind"]}
                ],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/usr/bin/hook",
                        "args": ["hook", "x"],
                        "env": ["PATH=/bin"],
                        "timeout": 5,
                    }
                ],
                "intelRdt": {"closID": "a", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=10"},
                "additionalGids": [44],
            },
        }
    ],
    "containerEdits": {"env": ["C=d"]},
}


def _cdi(decode: parse.Decoder) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, _: Path) -> None:
        spec = parse.parse_spec(data, decode=decode)
        _assert_same("a spec", spec, parse.build_spec(emit.as_document(spec)))
        lint.lint(spec)
        emit.emit_json(spec)
        stamp.find(spec.annotations, data, data)
        file = cdi.SpecFile(path="/x.json", priority=0, spec=spec)
        for device in spec.devices:
            inject.inject({}, [cdi.Resolved(name=f"{spec.kind}={device.name}", device=device, file=file)], stat=_node)

    return feed


def _node(path: str) -> node.HostNode | None:
    return node.HostNode("c", 195, 0, 0o666) if path.startswith("/dev/") else None


def _scan(name: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        found = directory.scan((str(folder),))
        assert [file.path for file in found.files] == [str(folder / name)]
        for bad in found.problems.values():
            raise bad[0]
        found.inject({}, list(found.devices), stat=_node)

    return feed


# Manifests -----------------------------------------------------------------------------------------------------------

POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "box",
        "namespace": "default",
        "generateName": "box-",
        "labels": {"app": "x"},
        "annotations": {"example.com/a": "b"},
        "finalizers": ["example.com/f"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}],
    },
    "spec": {
        "nodeName": "",
        "schedulerName": "fairlead",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"a": "b"},
        "priorityClassName": "system-cluster-critical",
        "hostname": "h",
        "runtimeClassName": "r",
        "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            }
        },
        "securityContext": {"runAsUser": 1, "runAsGroup": 1},
        "activeDeadlineSeconds": 60,
        "volumes": [
            {"name": "v", "hostPath": {"path": "/srv", "type": "Directory"}},
            {"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
        "initContainers": [{"name": "i", "image": "localhost/box:1", "command": ["true"]}],
        "containers": [
            {
                "name": "c",
                "image": "localhost/box:1",
                "imagePullPolicy": "Never",
                "command": ["sh", "-c"],
                "args": ["echo"],
                "workingDir": "/srv",
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "web", "containerPort": 80, "hostPort": 8080, "hostIP": "::1", "protocol": "TCP"}],
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1Gi"},
                    "requests": {"cpu": "500m"},
                },
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
                "securityContext": {
                    "runAsUser": 1,
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"add": [], "drop": ["ALL"]},
                },
                "stdin": False,
                "tty": False,
            }
        ],
    },
}
QUOTA: Final = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q", "namespace": "default", "labels": {"a": "b"}},
    "spec": {
        "hard": {"requests.nvidia.com/gpu": "4", "pods": 2, "limits.cpu": "1", "memory": "1Gi"},
        "scopes": ["NotTerminating"],
    },
}


def _manifest(data: bytes, _: Path) -> None:
    for found in manifest.parse(data, kinds=(core.Pod, core.ResourceQuota)):
        if isinstance(found.item, core.Pod):
            pod = admission.admit(found.item)
            _assert_same("labels", found.document["metadata"].get("labels", {}), dict(pod.metadata.labels))
            quota.usage(pod)
        elif isinstance(found.item, core.ResourceQuota):
            quota.check_limits(found.item)


# kubeconfig ----------------------------------------------------------------------------------------------------------

KUBECONFIG: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "x",
    "clusters": [
        {
            "name": "c",
            "cluster": {
                "server": "http://127.0.0.1:1",
                "certificate-authority-data": "",
                "tls-server-name": "n",
                "insecure-skip-tls-verify": False,
                "proxy-url": "http://127.0.0.1:2",
            },
        }
    ],
    "users": [
        {
            "name": "u",
            "user": {
                "token": "t",
                "username": "n",
                "password": "p",
                "as": "other",
                "as-uid": "1",
                "as-groups": ["g"],
                "client-certificate-data": "",
                "client-key-data": "",
            },
        }
    ],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
}
WITH_FILES: Final = {
    **KUBECONFIG,
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "eA=="}}],
    "users": [
        {"name": "u", "user": {"tokenFile": "t", "client-certificate": "c", "client-key": "k"}},
        {
            "name": "p",
            "user": {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "plugin",
                    "args": ["a"],
                    "env": [{"name": "A", "value": "b"}],
                    "interactiveMode": "Never",
                    "installHint": "h",
                }
            },
        },
    ],
}
EXEC_ANSWER: Final = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {
        "token": "t",
        "expirationTimestamp": "2030-01-01T00:00:00Z",
        "clientCertificateData": "c",
        "clientKeyData": "k",
    },
}


@contextlib.asynccontextmanager
async def _kubeconfig(folder: Path) -> AsyncIterator[Feed]:
    path = folder / "kubeconfig"

    async def feed(data: bytes) -> None:
        path.write_bytes(data)
        access = credentials.find({"KUBECONFIG": str(path)}, home=folder, root=folder)
        if access.user.exec is None:  # a program that the file names is run, by design
            for _, value in await credentials.Credentials(access).headers():
                assert not set("\r\n\0") & set(value)

    yield feed


def _kubeconfig_parsed(data: bytes, folder: Path) -> None:
    kubeconfig.choose(kubeconfig.merge([kubeconfig.parse(data, path=folder / "k")]), None)


def _exec_answer(data: bytes, _: Path) -> None:
    plugin = kubeconfig.Exec(command="p", api_version="client.authentication.k8s.io/v1")
    kubeconfig.parse_exec(data, plugin)


# Settings and profiles -----------------------------------------------------------------------------------------------


def _settings_document() -> dict[str, Any]:
    document: dict[str, Any] = {}
    for row in settings.rows():
        value = row.default if isinstance(row.default, str | int | float) else str(row.default or "/x")
        document.setdefault(row.group, {})[row.name] = value
    return document


def _settings_file(data: bytes, folder: Path) -> None:
    path = folder / "config.toml"
    path.write_bytes(data)
    _same_again(settings.load(flags={}, env={}, file=path))


def _settings_env(data: bytes, _: Path) -> None:
    given = json.loads(data)
    env = {key: str(value) for key, value in given.items()}
    _same_again(settings.load(flags={}, env=env, file=None))


def _same_again(found: settings.Settings) -> None:
    _assert_same("settings", found, settings.load(flags={}, env=settings.environment(found), file=None))


def _settings_env_document() -> dict[str, Any]:
    fallback = {row.env: row.choices[-1] if row.choices else "/x" for row in settings.rows()}
    return {
        row.env: str(row.default if row.default not in {None, ""} else fallback[row.env]) for row in settings.rows()
    }


PROFILE: Final = {
    "title": "t",
    "driver": "550.54.15",
    "cuda": [12, 4],
    "groups": [
        {"part": "p", "pci": ["0000:01:00.0"], "minors": [0], "numa": 0, "nvlink": "mesh", "pcie": "NODE"},
        {"part": "h100-80", "pci": ["0000:02:00.0"]},
    ],
    "parts": {
        "p": {
            "name": "P",
            "device_id": 1,
            "memory_mib": 1024,
            "compute_capability": [9, 0],
            "nvlinks": 2,
            "idle_power_mw": 3,
            "brand": 14,
            "mig": {"shape": "s", "names": ["1g.5gb"], "memory_mib": [512], "multiprocessors": [1]},
        }
    },
    "shapes": {
        "s": {"rows": [{"enum": 0, "id": 19, "slices": 1, "size": 1, "starts": [0], "limit": 7, "media": False}]}
    },
}


def _profile(suffix: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        path = folder / f"p{suffix}"
        path.write_bytes(data)
        found = profile.load(str(path))
        if os.geteuid() == 0:  # its device nodes need root
            root.FakeRoot(folder / "root", machine.Machine(found)).build()

    return feed


# Lists of the driver and the linker ----------------------------------------------------------------------------------


def _mount_csv(data: bytes, _: Path) -> None:
    mountcsv.parse_mount_csv(data)


def _ldcache(data: bytes, _: Path) -> None:
    ldcache.parse_ldcache(data)


LDCACHE: Final = ldcache.emit_ldcache(
    ldcache.Entry(soname=f"lib{name}.so.1", path=f"/lib/lib{name}.so.1.0", flags=0x303) for name in "abc"
)


DOORS: Final = (
    Door(
        name="CDI spec, JSON",
        opened=plain(_cdi(parse.decode_json)),
        specimens=(("spec", SPEC),),
        refusals=(cdi_errors.CDIError,),
    ),
    Door(
        name="CDI spec, YAML",
        every=3,
        opened=plain(_cdi(yamlfile.decode_yaml)),
        specimens=(("spec", SPEC),),
        values=hostile.YAML_VALUES,
        refusals=(cdi_errors.CDIError,),
    ),
    Door(
        name="folder of CDI specs",
        every=3,
        opened=plain(_scan("a.json")),
        specimens=(("spec", SPEC),),
        refusals=(cdi_errors.CDIError,),
    ),
    Door(
        name="manifest, JSON",
        opened=plain(_manifest),
        specimens=(("pod", POD), ("quota", QUOTA)),
        refusals=OURS,
        sample=120,
    ),
    Door(
        name="manifest, YAML",
        every=3,
        opened=plain(lambda data, folder: _manifest(b"# YAML\n" + data, folder)),
        specimens=(("pod", POD), ("quota", QUOTA)),
        values=hostile.YAML_VALUES,
        refusals=OURS,
        sample=120,
    ),
    Door(
        name="kubeconfig",
        opened=_kubeconfig,
        specimens=(("kubeconfig", KUBECONFIG),),
        values=hostile.YAML_VALUES,
        refusals=OURS,
    ),
    Door(
        name="kubeconfig with files and a plugin",
        opened=plain(_kubeconfig_parsed),
        specimens=(("kubeconfig", WITH_FILES),),
        values=hostile.YAML_VALUES,
        refusals=OURS,
    ),
    Door(name="exec plugin's answer", opened=plain(_exec_answer), specimens=(("answer", EXEC_ANSWER),), refusals=OURS),
    Door(
        name="config.toml",
        opened=plain(_settings_file),
        specimens=(("settings", _settings_document()),),
        encode=specimen.as_toml,
        refusals=OURS,
    ),
    Door(
        name="environment",
        opened=plain(_settings_env),
        specimens=(("variables", _settings_env_document()),),
        values=hostile.TEXTS,
        documents=False,
        refusals=OURS,
    ),
    Door(
        name="profile, TOML",
        every=3,
        opened=plain(_profile(".toml")),
        specimens=(("profile", PROFILE),),
        encode=specimen.as_toml,
        refusals=OURS,
    ),
    Door(name="profile, JSON", opened=plain(_profile(".json")), specimens=(("profile", PROFILE),), refusals=OURS),
    Door(name="Compose file", opened=plain(_compose), specimens=(("compose", COMPOSE),), refusals=OURS),
    Door(name="mount list", opened=plain(_mount_csv), binary=(("list", b"dev, /dev/a\nlib, /lib/b\n"),), refusals=OURS),
    Door(name="linker's cache", opened=plain(_ldcache), binary=(("cache", LDCACHE),), refusals=OURS),
)
