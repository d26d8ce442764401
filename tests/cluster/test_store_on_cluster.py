"""The store contract, all of it, on the cluster's real API server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import home

_SUITE = Path(__file__).parents[1] / "contract" / "test_store_contract.py"


@pytest.mark.cluster
@pytest.mark.smoke
@pytest.mark.timeout(400)
def test_the_store_contract_holds_on_a_real_api_server(cluster: home.Cluster) -> None:
    environment = {**os.environ, "FAIRLEAD_TEST_KUBECONFIG": str(cluster.kubeconfig)}  # noqa: TID251
    command = (sys.executable, "-m", "pytest", str(_SUITE), "-q", "-rs", "-k", "kubernetes", "-p", "no:cacheprovider")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    # A suite that found no cluster passes too; the one skip that is meant is what an API server checks by itself.
    assert re.search(r"\b[1-9][0-9]+ passed", done.stdout), done.stdout
    reasons = set(re.findall(r"SKIPPED .*?: (.*)", done.stdout))
    assert reasons <= {"an API server checks quotas itself"}, done.stdout
