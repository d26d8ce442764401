"""A quota holds while several processes submit at once over one state file: never one pod too many."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from fairlead import errors
from fairlead.serve.backend.containers import lifecycle
from fairlead.serve.backend.place import Everywhere
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta

_PROCESSES = 4
_EACH = 6
_ALLOWED = 7


def _submit(path: Path, name: str, start: Barrier) -> None:
    async def work() -> None:
        with sqlite.SQLiteStore(path) as store:
            living = lifecycle.LocalLifecycle(store=store)
            start.wait()
            for number in range(_EACH):
                item = core.Container(name="main", image="a")
                about = meta.ObjectMeta(name=f"{name}-{number}", namespace="default")
                pod = core.Pod(metadata=about, spec=core.PodSpec(containers=(item,)))
                try:
                    await living.submit(Everywhere().new("default").submission(pod))
                except errors.Denied as error:
                    assert error.reason == "Forbidden"  # noqa: PT017 - most are refused, none must be

    asyncio.run(work())


async def test_processes_that_submit_at_once_never_exceed_a_quota(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    context = multiprocessing.get_context("spawn")
    with sqlite.SQLiteStore(path) as store:
        about = meta.ObjectMeta(name="few", namespace="default")
        await store.create(core.ResourceQuota(metadata=about, spec=core.ResourceQuotaSpec(hard={"pods": _ALLOWED})))
        start = context.Barrier(_PROCESSES)
        submitters = [context.Process(target=_submit, args=(path, f"p{n}", start)) for n in range(_PROCESSES)]
        for submitter in submitters:
            submitter.start()
        for submitter in submitters:
            await asyncio.to_thread(submitter.join)
        assert [submitter.exitcode for submitter in submitters] == [0] * _PROCESSES
        assert len((await store.list(core.Pod)).items) == _ALLOWED
