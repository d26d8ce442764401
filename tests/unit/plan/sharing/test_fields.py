"""What a node does with each field of a configuration file, as `fairlead agent check` says it."""

from __future__ import annotations

import pytest

from fairlead.plan.sharing import fields
from fairlead.wire.nvidia import pluginreader
from fairlead.wire.nvidia.pluginconfig import Effect

_EVERY = """
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 2}]
  mps:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources: [{name: nvidia.com/gpu, replicas: 20, devices: ["0", "1"]}]
imex: {channelIDs: [0], required: true}
fairlead:
  sharing: {differentGPUs: true}
  health: {xids: {94: ignore}}
"""


def _explained(text: str) -> dict[str, fields.Field]:
    return {one.path: one for one in fields.explain(pluginreader.parse(text, source="f"))}


def test_every_field_says_what_comes_of_it() -> None:
    found = _explained(_EVERY)
    assert (found["sharing.timeSlicing"].effect, found["sharing.timeSlicing"].text) == (
        Effect.NOTHING_TO_DO,
        "sharing.mps is given too, and counts alone",
    )
    assert "is refused" in found["sharing.mps.failRequestsGreaterThanOne"].text.replace("are refused", "is refused")
    assert found["sharing.mps.renameByDefault"].text == "shared resources end in .shared"
    shared = found["sharing.mps.resources[0]"].text
    assert "offered as nvidia.com/gpu.shared" in shared
    assert "5 % of the threads and 1/20 of the memory" in shared
    assert "GPUs before Volta serve 16 clients and are not offered" in shared
    assert (found["imex.channelIDs"].value, found["imex.channelIDs"].effect) == ("0", Effect.LIVE)
    assert found["imex.required"].text == "containers are refused while such a channel is missing"
    assert found["fairlead.sharing.differentGPUs"].value == "true"
    assert found["fairlead.health.xids.94"].value == "ignore"


def test_what_is_switched_off_asks_for_nothing() -> None:
    found = _explained("version: v1\nimex: {channelIDs: [], required: false}\n")
    assert found["imex.channelIDs"].value == "none"
    assert found["imex.required"].text == "a channel may be missing"


@pytest.mark.parametrize(
    ("rules", "shared", "instead"),
    [
        ("mig: [{pattern: '*', name: mig}]", "nvidia.com/mig-1g.10gb", "nvidia.com/mig"),
        ("mig: [{pattern: '1g.10gb+me', name: media}]", "nvidia.com/mig-1g.10gb.me", "nvidia.com/media"),
        ("gpus: [{pattern: '*', name: big}]", "nvidia.com/gpu", "nvidia.com/big"),
        ("mig: [{pattern: '*', name: mig}]", "nvidia.com/mig", ""),
        ("mig: [{pattern: '*', name: mig}]", "nvidia.com/gpu", ""),
        ("mig: [{pattern: '2g.*', name: mig}]", "nvidia.com/mig-1g.10gb", ""),
        ("gpus: [{pattern: 'Tesla*', name: big}]", "nvidia.com/gpu", ""),
    ],
)
def test_a_name_that_a_renaming_takes_from_every_device_is_not_shared_and_the_other_is_named(
    rules: str, shared: str, instead: str
) -> None:
    sharing = f"{{timeSlicing: {{resources: [{{name: {shared}, replicas: 2}}]}}}}"
    found = _explained(f"resources: {{{rules}}}\nsharing: {sharing}")["sharing.timeSlicing.resources[0]"]
    assert (found.effect is Effect.NOT_CARRIED_OUT) is bool(instead)
    assert f"as {instead};" in found.text if instead else "replicas of each" in found.text
