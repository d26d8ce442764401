"""The contract of workloads' controllers, all of it, on the cluster's kube-controller-manager: ours do the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import home

_SUITE = Path(__file__).parents[1] / "contract" / "test_workloads_contract.py"


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_the_contract_of_workloads_holds_for_a_real_controller_manager(cluster: home.Cluster) -> None:
    environment = {**os.environ, "FAIRLEAD_TEST_KUBECONFIG": str(cluster.kubeconfig)}  # noqa: TID251
    command = (sys.executable, "-m", "pytest", str(_SUITE), "-q", "-k", "kubernetes", "-p", "no:cacheprovider")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    # None skipped: a suite that found no cluster passes too.
    assert re.search(r"\b[1-9][0-9]+ passed", done.stdout), done.stdout
    assert "skipped" not in done.stdout
