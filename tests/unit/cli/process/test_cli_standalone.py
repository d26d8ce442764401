"""What one machine takes of the scheduler's settings."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.cli.process import standalone
from fairlead.plan.claim import gate
from fairlead.settings import ControlSettings


@pytest.mark.parametrize("text", ["", "DRAExtendedResource=false", "DRAAdminAccess=true, DRAExtendedResource=false"])
def test_one_machines_scheduler_makes_no_claims_that_its_kubelet_does_not_prepare(text: str) -> None:
    found = gate.of_setting(standalone.of_machine(ControlSettings(feature_gates=text)).feature_gates)
    assert not found.extended_resources
    assert gate.of_setting(text or "DRAExtendedResource=true").extended_resources is (text == "")


def test_who_asks_for_them_on_one_machine_is_refused_with_the_word_to_use() -> None:
    with pytest.raises(errors.Invalid, match="prepares no such claims") as caught:
        standalone.of_machine(ControlSettings(feature_gates="DRAExtendedResource=true"))
    assert "--device-class" in (caught.value.hint or "")
