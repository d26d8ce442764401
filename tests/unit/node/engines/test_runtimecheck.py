"""Strategies that an engine itself does not read need a runtime that does: whether its files name one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.node.engines import runtimecheck
from fairlead.plan.gpu.allocation import answer


def way(text: str, *, passes_device_specs: bool = False) -> answer.AllocateOptions:
    return answer.AllocateOptions(strategies=answer.parse_strategies(text), passes_device_specs=passes_device_specs)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "containerd" / "conf.d" / "some.toml"
    path.parent.mkdir(parents=True)
    path.write_text('BinaryName = "/usr/bin/runc"\n')
    return path


@pytest.mark.parametrize("strategies", ["envvar", "volume-mounts", "envvar,volume-mounts"])
def test_engines_that_start_no_runtime_of_the_kind_are_told_with_the_way_out(
    tmp_path: Path, config: Path, strategies: str
) -> None:
    problem = runtimecheck.find_problem(way(strategies), tmp_path)
    assert problem is not None
    assert problem.reason == "RuntimeReadsNothing"
    assert "fairlead runtime configure" in str(problem.hint)


@pytest.mark.parametrize("program", ["/usr/libexec/fairlead/fairlead-runtime", "/usr/bin/nvidia-container-runtime"])
def test_a_runtime_that_reads_them_is_enough(tmp_path: Path, config: Path, program: str) -> None:
    config.write_text(f'BinaryName = "{program}"\n')
    assert runtimecheck.find_problem(way("envvar"), tmp_path) is None


def test_names_of_cdi_and_nodes_need_no_runtime(tmp_path: Path, config: Path) -> None:
    assert runtimecheck.find_problem(way("cdi-cri"), tmp_path) is None
    assert runtimecheck.find_problem(way("envvar,cdi-annotations"), tmp_path) is None
    assert runtimecheck.find_problem(way("envvar", passes_device_specs=True), tmp_path) is None


def test_where_no_engine_can_be_seen_nothing_is_said(tmp_path: Path) -> None:
    assert runtimecheck.find_problem(way("envvar"), tmp_path) is None
