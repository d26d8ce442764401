"""Where a part works: which silicon, which programs, which folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import settings
from fairlead.model.gpu import Inventory
from fairlead.silicon import machine
from fairlead.silicon.port import SampledSilicon

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USUAL: Final = ("/usr/local/nvidia/bin", "/usr/bin", "/run/nvidia/driver/usr/bin", "/home/kubernetes/bin/nvidia/bin")
_LIBRARY_FOLDERS: Final = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every part is given; it travels to the part's process as JSON."""

    work: str
    """A folder of this check alone, removed at its end."""
    output: str
    """Where the report goes."""
    simulate: str = ""
    """A profile of simulated silicon; empty: this machine's GPUs."""
    smi: str = ""
    """The driver's nvidia-smi; empty: none was found."""
    nvcc: str = ""
    libraries: str = ""
    """Folders of driver libraries that no cache of the linker names, for `silicon.library_path`."""
    tests: str = ""
    """A folder with tests/contract and pyproject.toml."""

    @property
    def folder(self) -> Path:
        """The work folder."""
        return Path(self.work)

    @property
    def env(self) -> dict[str, str]:
        """The environment of Fairlead's commands: a state folder of this check's own."""
        own = {
            "FAIRLEAD_STATE_FOLDER": f"{self.work}/state",
            "FAIRLEAD_STATE_RUN": f"{self.work}/run",
            "FAIRLEAD_LOG_FORMAT": "json",
        }
        if self.simulate:
            own["FAIRLEAD_SILICON_SIMULATE"] = self.simulate
        if self.libraries:
            own["FAIRLEAD_SILICON_LIBRARY_PATH"] = self.libraries
        return {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **own}

    @property
    def silicon_settings(self) -> settings.SiliconSettings:
        """The silicon that this check is about."""
        return settings.SiliconSettings(simulate=self.simulate, library_path=self.libraries)

    def open_silicon(self) -> SampledSilicon:
        """Open it; simulated silicon has its tree in the work folder."""
        return machine.open_silicon(self.silicon_settings, self.folder / "state/silicon")

    async def scan(self) -> Inventory:
        """Read its GPUs once."""
        silicon = self.open_silicon()
        try:
            return await silicon.scan()
        finally:
            await silicon.close()

    @property
    def root(self) -> Path:
        """The root below which the silicon's /dev, /proc and /sys lie."""
        return machine.root_of(self.silicon_settings, self.folder / "state/silicon")

    def fairlead(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run one command of Fairlead to its end; a command that does not end raises TimeoutExpired."""
        return run((*fairlead_command(), *arguments), env=self.env, timeout_s=timeout_s)


def fairlead_command() -> tuple[str, ...]:
    """Return how Fairlead is called: by the Python that runs this."""
    return (sys.executable, "-m", "fairlead.cli.main")


def run(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without a shell."""
    surroundings = dict(env) if env is not None else {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    return subprocess.run(
        argv,
        env=surroundings,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def find(name: str, surroundings: Mapping[str, str], *folders: str) -> str:
    """Return the absolute path of a program, on the caller's PATH or in one of these folders; empty: nowhere."""
    return shutil.which(name, path=":".join((surroundings.get("PATH", PATH), *folders))) or ""


def find_smi(surroundings: Mapping[str, str]) -> str:
    """Return the driver's nvidia-smi, also where a driver's folder is unusual."""
    return find("nvidia-smi", surroundings, *_USUAL)


def find_nvcc(surroundings: Mapping[str, str]) -> str:
    """Return the CUDA compiler, which toolkits keep off PATH."""
    return find("nvcc", surroundings, "/usr/local/cuda/bin", *(str(path) for path in Path("/opt").glob("cuda*/bin")))


def unusual_libraries(surroundings: Mapping[str, str]) -> str:
    """Return folders with a libnvidia-ml.so.1 that Fairlead would not look into by itself, for `library_path`."""
    named = [part for part in surroundings.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
    found = [place for place in (*named, *_LIBRARY_FOLDERS) if Path(place, "libnvidia-ml.so.1").exists()]
    return ":".join(dict.fromkeys(found))


def save(context: Context, path: Path) -> None:
    """Write a context for a part's process."""
    path.write_text(json.dumps(dataclasses.asdict(context)))


def load(path: Path) -> Context:
    """Read what `save` wrote."""
    return Context(**json.loads(path.read_text()))
