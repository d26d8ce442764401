"""The stub of NVIDIA's library, compiled once, and Managers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairlead.silicon.fabric import address, nvfm
from tests.fabricstub import library
from tests.fabricstub.lattice import H100, Lattice
from tests.fabricstub.manager import Manager


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


class Bench:
    """Managers of this test, and connections to them."""

    def __init__(self, stub: Path, folder: Path, stack: ExitStack) -> None:
        self.stub, self.socket, self._stack = stub, folder / "fm.sock", stack

    def start(self, lattice: Lattice = H100, **options: object) -> Manager:
        return self._stack.enter_context(library.running(f"unix:{self.socket}", lattice, **options))

    def connect(self, text: str = "", stub: Path | None = None) -> nvfm.NVFM:
        made = nvfm.NVFM(str(stub or self.stub), address.parse(text or str(self.socket)), timeout_s=5)
        self._stack.callback(made.close)
        return made


@pytest.fixture
def bench(stub: Path, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stub, tmp_path, stack)
