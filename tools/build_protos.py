"""Build hook: turn our statement of other people's messages (`wire/proto/*.proto`) into shipped Python modules.

The cluster ring's `tests/cluster/proto` is generated too, where there is one.

Runs when a wheel or an editable install is built, so a checkout never holds generated code and a wheel always does.
Only messages are generated; the services are a few lines of `grpc` generic handlers in `wire`.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_FOLDERS = (Path("src/fairlead/wire/proto"), Path("tests/cluster/proto"))


class ProtoBuildHook(BuildHookInterface[Any]):
    """Generate `*_pb2.py` and `*_pb2.pyi` beside every `.proto`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  (hatchling's signature)
        for folder in PROTO_FOLDERS:
            generate(Path(self.root) / folder)


def generate(folder: Path) -> None:
    """Run protoc over `folder`, if it is there; raises SystemExit when a statement does not parse."""
    well_known = resources.files("grpc_tools") / "_proto"
    for old in (path for path in folder.glob("*_pb2.py*") if not (folder / f"{path.stem[:-4]}.proto").exists()):
        old.unlink()
    for proto in sorted(folder.glob("*.proto")):
        arguments = ["protoc", f"-I{folder}", f"-I{well_known}", f"--python_out={folder}", f"--pyi_out={folder}"]
        status = protoc.main([*arguments, str(proto)])
        if status:
            raise SystemExit(f"protoc refused {proto}: status {status}")
