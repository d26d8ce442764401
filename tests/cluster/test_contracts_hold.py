"""Contract suites of `tests/contract`, all of each, on the cluster: ours do what the real parts do.

The store and the subresources of pods meet the real API server, workloads the real kube-controller-manager.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tools.cluster import home

_SUITES: Final = Path(__file__).parents[1] / "contract"
_MEANT_SKIPS: Final = {"an API server checks quotas itself", "an API server has no other name for an object"}


@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "suite",
    [
        pytest.param("test_store_contract.py", id="store", marks=pytest.mark.smoke),
        pytest.param("test_subresource_contract.py", id="subresources"),
        pytest.param("test_workloads_contract.py", id="workloads"),
    ],
)
def test_a_contract_holds_on_the_real_cluster(cluster: home.Cluster, suite: str) -> None:
    environment = {**os.environ, "FAIRLEAD_TEST_KUBECONFIG": str(cluster.kubeconfig)}  # noqa: TID251
    options = ("-q", "-rs", "-k", "kubernetes", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", str(_SUITES / suite), *options)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    # A suite that found no cluster skips its tests, and passes too.
    assert re.search(r"\b[1-9][0-9]+ passed", done.stdout), done.stdout
    assert set(re.findall(r"SKIPPED .*?: (.*)", done.stdout)) <= _MEANT_SKIPS, done.stdout
