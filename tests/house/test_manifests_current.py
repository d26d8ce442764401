"""The manifests that are shipped belong to the chart as it is; told without helm, by a fingerprint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead.cli.admin import manifests
from tools import render_chart


def test_the_shipped_manifests_were_rendered_from_this_chart() -> None:
    # a template, a value or a definition has changed: `.venv/bin/python -m tools.render_chart` renders anew
    assert render_chart.is_current(render_chart.committed())


def test_an_edit_by_hand_and_a_file_left_out_are_noticed() -> None:
    shipped = render_chart.committed()
    edited = {path: text.replace("fairlead", "mine", 1) for path, text in shipped.items()}
    assert not render_chart.is_current(edited)
    assert not render_chart.is_current(dict(list(shipped.items())[1:]))
    assert not render_chart.is_current({})


def test_a_changed_template_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = render_chart.committed()
    shutil.copytree(manifests.CHART, tmp_path / "chart")
    monkeypatch.setattr(manifests, "CHART", tmp_path / "chart")
    assert render_chart.is_current(shipped)
    with (tmp_path / "chart/templates/agent.yaml").open("a") as file:
        file.write("#")
    assert not render_chart.is_current(shipped)
