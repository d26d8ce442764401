"""Build hook: turn our statement of other people's messages (`wire/proto/*.proto`) into shipped Python modules.

Runs when a wheel or an editable install is built, so a checkout never holds generated code and a wheel always does.
Only messages are generated; the services are a few lines of `grpc` generic handlers in `wire`.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_FOLDER = Path("src/fairlead/wire/proto")


class ProtoBuildHook(BuildHookInterface[Any]):
    """Generate `*_pb2.py` and `*_pb2.pyi` beside every `.proto`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  (hatchling's signature)
        generate(Path(self.root) / PROTO_FOLDER)


def generate(folder: Path) -> None:
    """Run protoc over `folder`; raises SystemExit with protoc's status when a statement does not parse."""
    well_known = resources.files("grpc_tools") / "_proto"
    for proto in sorted(folder.glob("*.proto")):
        arguments = ["protoc", f"-I{folder}", f"-I{well_known}", f"--python_out={folder}", f"--pyi_out={folder}"]
        status = protoc.main([*arguments, str(proto)])
        if status:
            raise SystemExit(f"protoc refused {proto}: status {status}")
