"""How long the verifier's machine takes for four GPUs at once, beside one.

On the emulated HGX node, since GPUs go to a machine by VFIO: QEMU with KVM, which TCG emulates, the shipped verifier
and third gate. The image's driver is a stand-in that reads registers (`tests/system/hgx/verifier.sh`), so what NVIDIA's
takes for each GPU is in neither figure: the row says what is ours, which is one boot for all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks import frame

NAME: Final = "vm: verifier"
_SYSTEM: Final = Path(__file__).parents[1] / "tests/system"
_RUNS: Final = 3
_LIMIT_S: Final = 300.0
_FOUR: Final = ("gpu0", "gpu1", "gpu2", "gpu3")


@frame.benchmark("vm.verifier")
def verifier_rows() -> Iterator[frame.Row | frame.Unmeasured]:
    """Seconds from the asking to the reading, of one GPU and of four, turn by turn."""
    if lacking := frame.needs(NAME, "gcc", "busybox", "mkfs.ext4", "setpriv"):
        yield lacking
        return
    try:
        runs = [*_runs()]
    except pytest.skip.Exception as error:
        yield frame.Unmeasured(name=NAME, why=str(error))
        return
    one, four = (min(found["seconds"] for found in runs if found["gpus"] == count) for count in (1, 4))
    yield frame.Row(name=f"{NAME}, one GPU, best of {_RUNS}", ours=one, unit="s")
    yield frame.Row(
        name=f"{NAME}, four GPUs at once, best of {_RUNS}",
        ours=four,
        unit="s",
        peer=one,
        peer_name="one GPU",
        peer_source="this run",
        bar=one * 1.5,
    )


def _runs() -> Iterator[dict[str, float]]:
    if str(_SYSTEM) not in sys.path:
        sys.path.insert(0, str(_SYSTEM))
    from hgx import image, layout, shown, tenant

    packed = [_SYSTEM / "hgx/verifying.py"]
    with shown.hgx_node(layout.HGX_H100, modules=packed, tenants=1, **image.verifying()) as node:
        addresses = [node.address[name] for name in _FOUR]
        bound = node.fairlead("vfio", "bind", *addresses)
        if bound.code:
            raise RuntimeError(bound.err)
        env = tenant.verifier_env(node)
        words = [env[f"FAIRLEAD_LEASE_VERIFIER_{name}"] for name in ("IMAGE", "EMULATOR")]
        node.do("preload", ["verifying", "fairlead.node.vm.verifier", "fairlead.node.vfio.gpus"])
        for _ in range(_RUNS):
            for count in (1, len(_FOUR)):
                given = (*words, tenant.MEMORY_MIB, addresses[:count], _LIMIT_S)
                yield node.call("verifying", "read", *given, limit_s=_LIMIT_S + 60)
