"""Compiles the stub of NVIDIA's library, and the C client, against a header made from the package's own statement."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.silicon.fabric import abi
from tests.fabricstub.lattice import H100, Lattice
from tests.fabricstub.manager import Manager

_NAMES = {
    abi.ConnectParamsV1: "CONNECT_V1",
    abi.ConnectParamsV2: "CONNECT_V2",
    abi.PartitionList: "PARTITIONS",
    abi.ActivatedList: "ACTIVATED",
    abi.FailedDevices: "FAILED_DEVICES",
    abi.UnsupportedList: "UNSUPPORTED_LIST",
}
_SIZES = {
    "ConnectParamsV1": 268,
    "ConnectParamsV2": 272,
    "GPUInfo": 128,
    "PartitionInfo": 2060,
    "PartitionList": 131852,
    "ActivatedList": 264,
    "FailedInfo": 372,
    "FailedDevices": 10428,
    "UnsupportedInfo": 72,
    "UnsupportedList": 4616,
}
"""As published; the compiler holds our statement to them."""


def header() -> str:
    """Return a C header of the structures, in the order in which they need each other."""
    kinds = [kind for kind in vars(abi).values() if isinstance(kind, type) and issubclass(kind, ctypes.Structure)]
    lines = ["#include <stdint.h>"]
    for kind in kinds:
        fields = "".join(f"    {_declared(name, of)};\n" for name, of in kind._fields_)  # type: ignore[misc]  # none has bit fields
        lines.append(f"struct {kind.__name__} {{\n{fields}}};")
        lines.append(f'_Static_assert(sizeof(struct {kind.__name__}) == {_SIZES[kind.__name__]}, "{kind.__name__}");')
    lines += [f"#define {name} {abi.version_word(kind)}u" for kind, name in _NAMES.items()]
    return "\n".join([*lines, ""])


def _declared(name: str, of: type) -> str:
    length = getattr(of, "_length_", None)
    inner: type = of._type_ if length is not None else of  # type: ignore[attr-defined]  # an array's
    plain: dict[type, str] = {ctypes.c_uint32: "uint32_t", ctypes.c_char: "char"}
    kind = plain.get(inner, f"struct {inner.__name__}")
    return f"{kind} {name}[{length}]" if length is not None else f"{kind} {name}"


def compile_library(folder: Path, *defines: str, name: str = "libnvfm.so.1") -> Path:
    """Compile the stub. Args: defines: ONLY_V1: before vsock; HALF: a function is missing."""
    return _compile(folder, "nvfm.c", name, "-shared", "-fPIC", *[f"-D{one}" for one in defines])


def compile_client(folder: Path) -> Path:
    """Compile the C program that lists partitions."""
    return _compile(folder, "client.c", "client", "-ldl")


def _compile(folder: Path, source: str, name: str, *options: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "abi.h").write_text(header())
    made = folder / name
    command = ["gcc", "-O2", "-Wall", "-Wno-stringop-truncation", "-I", str(folder), "-o", str(made)]
    subprocess.run([*command, str(Path(__file__).parent / source), *options], check=True)
    return made


@contextmanager
def running(address: str, lattice: Lattice = H100, **options: object) -> Iterator[Manager]:
    """Run a Manager in threads of this process."""
    made = Manager(lattice.partitions, lattice.links, **options)  # type: ignore[arg-type]  # its own options
    made.listen(address)
    try:
        yield made
    finally:
        made.stop()
