"""A Debian root file system made from packages: what a registry would hand out as `debian:bookworm-slim`.

It comes from the mirrors this machine's apt uses, so it is there wherever apt works. Only the build stage sees it; what
the image keeps of it is stated in `system.toml`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from fairlead import errors
from tools.image import builder

NAME: Final = "localhost/fairlead/base:bookworm"
_SUITES: Final = (("Debian", "bookworm"), ("Debian", "bookworm-updates"), ("Debian-Security", "bookworm-security"))
# Installed beside what is essential: apt needs authorities where the mirror is behind https.
_INCLUDED: Final = "ca-certificates"


def ensure(*, cache: Path = builder.CACHE, fresh: bool = False) -> str:
    """Return the base image's name, after making it where it is missing (half a minute).

    Args:    fresh: make it also where there is one.
    Raises:  Unavailable: no mmdebstrap, no mirror, no network.
    """
    if fresh or not builder.exists(NAME, cache=cache):
        with tempfile.TemporaryDirectory(prefix="fairlead-base-", dir=cache) as folder:
            archive = Path(folder) / "root.tar"
            options = ("--quiet", "--mode=root", "--variant=minbase", f"--include={_INCLUDED}")
            builder.run(("mmdebstrap", *options, _SUITES[0][1], str(archive), *_sources()))
            builder.podman("import", "--quiet", str(archive), NAME, cache=cache)
    return NAME


def _sources() -> list[str]:
    """Return lines for apt: the suites of Debian 12 on the mirrors of this machine, whichever Debian that is."""
    listed = builder.run(("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Identifier: Packages"))
    mirrors = dict(reversed([line.split() for line in listed.splitlines() if len(line.split()) == 2]))
    lines = [f"deb {mirrors[label]} {suite} main" for label, suite in _SUITES if label in mirrors]
    if "Debian" not in mirrors:
        hint = "on another system build with a registry: podman build --build-arg VERSION=... ."
        raise errors.Unavailable("apt of this machine knows no Debian mirror", reason="NoMirror", hint=hint)
    return lines
