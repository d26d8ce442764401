"""The embedded kubelet gives containers what they take from Secrets, and has them wait for what is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from fairlead.kernel.mounting import tmpfs
from fairlead.node.kubelet import spec
from fairlead.node.kubelet.devices.checkpoint import Grant
from fairlead.node.tenancy import secrets
from fairlead.plan.pod.values import secret
from fairlead.store import sealing, tracerecorder
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.source import KeySelector
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.node.kubelet.test_kubelet import World, _container, _output, _pod, world

__all__ = ["world"]

VALUE = "rosebud-7f3a"


def _taking(key: str = "password", **more: Any) -> core.Container:
    source = core.EnvVarSource(secret_key_ref=KeySelector(name="db", key=key))
    return _container(("env",), env=(core.EnvVar(name="TOKEN", value_from=source),), **more)


async def _keep(world: World, **values: str) -> None:
    seal = sealing.Seal(world.settings.state.folder / sealing.KEY_FILE)
    data = seal.sealed({key: value.encode() for key, value in values.items()}, "db", "default")
    await world.store.apply(
        core.Secret(metadata=meta.ObjectMeta(name="db", namespace="default"), data=data), manager="t"
    )


async def test_a_container_has_its_secret_and_no_record_of_it_has(world: World) -> None:
    await _keep(world, password=VALUE)
    async with world.kubelet():
        pod = await world.run(_pod(_taking(gpus=1)))
        over = await world.until_phase("train", "Succeeded")
        (state,) = await world.engine.list_containers({})
        assert f"TOKEN={VALUE}\n".encode() in await _output(world, state.name)
        steps = await tracerecorder.list_steps(world.store, tracerecorder.reference(pod))
        events = (await world.store.list(core.Event)).items
        written = msgspec.json.encode([over, *events]).decode() + "".join(map(repr, steps)) + repr(state)
        assert VALUE not in written


async def test_a_container_waits_for_its_secret_however_long_and_then_for_the_key(world: World) -> None:
    async with world.kubelet():
        await world.run(_pod(_taking()))
        waiting = await world.until("train", lambda pod: _waits(pod, 'secret "db" not found'))
        assert waiting.status.phase == "Pending"
        await asyncio.sleep(0)
        await _keep(world, other="x")
        await world.until("train", lambda pod: _waits(pod, "couldn't find key password in Secret default/db"))
        await _keep(world, password=VALUE)
        await world.until_phase("train", "Succeeded")


def _waits(pod: core.Pod, why: str) -> bool:
    waiting = [one.state.waiting for one in pod.status.container_statuses if one.state.waiting is not None]
    return any(one.reason == "CreateContainerConfigError" and why in one.message for one in waiting)


async def test_a_pod_whose_secret_cannot_be_opened_fails_with_the_next_step(world: World) -> None:
    await _keep(world, password=VALUE)
    (world.settings.state.folder / sealing.KEY_FILE).write_bytes(b"")
    async with world.kubelet():
        await world.run(_pod(_taking()))
        over = await world.until_phase("train", "Failed")
        assert "give every secret again" in over.status.message


def test_what_a_plugin_answers_goes_before_a_secret() -> None:
    answer = pb.ContainerAllocateResponse(envs={"TOKEN": "plugin's"})
    grants = (Grant(pod_uid="u", container="main", resource="r", device_ids=(), response=answer.SerializeToString()),)
    identity = spec.Identity(node="n", home="h")
    pod, item = _pod(_taking()), _taking()
    made = spec.container_spec(pod, item, 0, identity=identity, grants=grants, volumes={}, network_of=None)
    wanted = spec.with_secrets(made, pod, item, grants=grants, held={"db": {"password": b"x"}})
    assert (wanted.env, wanted.secret_env) == ({"TOKEN": "plugin's"}, {})


def test_a_value_that_refers_to_a_secret_is_a_secret_and_arguments_have_it() -> None:
    url = core.EnvVar(name="URL", value="db://u:$(TOKEN)@h")
    item = msgspec.structs.replace(_taking(), env=(*_taking().env, url), args=("--url=$(URL)",))
    pod, identity = _pod(item), spec.Identity(node="n", home="h")
    made = spec.container_spec(pod, item, 0, identity=identity, grants=(), volumes={}, network_of=None)
    wanted = spec.with_secrets(made, pod, item, grants=(), held={"db": {"password": b"x"}})
    assert (wanted.env, wanted.secret_env) == ({}, {"TOKEN": "x", "URL": "db://u:x@h"})
    assert wanted.args == ("--url=db://u:x@h",)


def _files(**data: bytes) -> tuple[secret.File, ...]:
    return tuple(secret.File(path=name, data=value, mode=None) for name, value in data.items())


def test_files_are_the_users_alone_or_everybodys_and_lie_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    try:
        secrets.write(folder, _files(a=b"1", b=b"2"), user=1000, first_id=0)
        assert folder.is_mount()
        found = (folder / "a").stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o400, 1000, 1000)
        kept = (folder / "b").stat().st_ino

        secrets.write(folder, _files(b=b"2", c=b"3"), user=None, first_id=1 << 24)
        assert sorted(path.name for path in folder.iterdir()) == ["b", "c"]
        found = (folder / "b").stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_ino) == (0o444, 1 << 24, kept)
    finally:
        tmpfs.unmount(folder)


def test_the_user_of_a_volume_is_known_where_all_that_have_it_say_one_number() -> None:
    def pod(*users: int | None, name: str = "") -> core.Pod:
        mounts = (core.VolumeMount(name="v", mount_path="/v"),)
        items = tuple(
            core.Container(name=f"c{at}", volume_mounts=mounts, security_context=core.SecurityContext(run_as_user=user))
            for at, user in enumerate(users)
        )
        return core.Pod(spec=core.PodSpec(containers=items, machine=core.MachineOptions(user=name)))

    assert secrets.user_of(pod(1000, 1000), "v") == 1000
    assert secrets.user_of(pod(1000, 1001), "v") is None
    assert secrets.user_of(pod(None), "v") is None
    assert secrets.user_of(pod(None, name="nobody"), "v") is None
