"""A stranger's first hour on bare Debian 12 and 13: install, demo and tutorial as printed, 80 columns, no colour.

Each root has nothing but Debian's base and make. The README's first command runs with the machine's network, for
package mirrors; everything after it with a loopback only. On Debian 13 that is Python 3.13, podman 5.4 and netavark.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(1200)]
CHECKOUT = Path(__file__).parents[2]
CACHE = Path.home() / ".cache/fairlead/debian"
_ENTER = str(Path(__file__).parent / "debianroot.sh")
_RUNNER = "/root/fairlead/tests/system/pages.py --plain --timeout 120"
_PAGES = f"python3 {_RUNNER}"
_FIRST = "make install\nfairlead --version\n"
_ALONE = f"""
offline {_PAGES} --skip 'make install' --skip 'make test' README.md docs/tutorial/first-container.md
"""
# The other service lives in another folder and simulates other GPUs; all in one network of their own.
_BESIDE = f"""
cat > /tmp/beside <<'END'
export FAIRLEAD_STATE_FOLDER=/tmp/other/state FAIRLEAD_STATE_RUN=/tmp/other/run
fairlead up --simulate a100x8 > /tmp/other.log 2>&1 &
unset FAIRLEAD_STATE_FOLDER FAIRLEAD_STATE_RUN
other=$!
for _ in $(seq 300); do grep -q ' is up on ' /tmp/other.log && break; sleep 0.1; done
fairlead --url http+unix:///tmp/other/run/api.sock image demo localhost/other:1
fairlead --url http+unix:///tmp/other/run/api.sock run -d --name theirs -g 8 localhost/other:1 -- sleep 1000
{_PAGES} --skip 'make install' --skip 'make test' README.md docs/tutorial/first-container.md
fairlead --url http+unix:///tmp/other/run/api.sock ps -o name
kill -0 $other
fairlead down --state-folder /tmp/other/state --api-socket /tmp/other/run/api.sock
END
offline bash -ex /tmp/beside
"""
_WAYS = """
make wheel deb
python3 -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet dist/*.whl
/tmp/venv/bin/fairlead --version
export UV_TOOL_DIR=/tmp/tools UV_TOOL_BIN_DIR=/tmp/tools/bin
.cache/uv/bin/uv tool install --quiet dist/fairlead-*.whl --with dist/fairlead_cdi-*.whl
/tmp/tools/bin/fairlead --version
make uninstall
apt-get install -y -qq --no-install-recommends ./dist/fairlead_*.deb
/usr/bin/fairlead --version
test -e /usr/lib/systemd/system/fairlead.service
dpkg -L fairlead | grep -F /usr/share/man/man1/fairlead-run.1.gz
dpkg -L fairlead | grep -F /usr/share/bash-completion/completions/fairlead
"""
_UNITS = """
tools/setup.sh tests
.venv/bin/python --version
.venv/bin/python -m pytest tests/unit -n 2 -q -p no:cacheprovider
"""


# What each page takes for granted.
_SERVICE = """
fairlead up --simulate h100x8 > /tmp/up.log 2>&1 &
for _ in $(seq 300); do grep -q ' is up on ' /tmp/up.log && break; sleep 0.1; done
fairlead image demo
"""
_CONTAINERS = """
fairlead run -d --name train localhost/demo -- sleep 60
mkdir root context
tar -cf rootfs.tar -C root .
printf 'FROM localhost/demo\\nCMD ["true"]\\n' > context/Containerfile
printf '%s\\n' 'apiVersion: v1' 'kind: ResourceQuota' 'metadata: {name: gpu-quota, namespace: red}' \\
  'spec: {hard: {requests.nvidia.com/gpu: 2}}' > gpu-quota.yaml
"""
_SPECS = """
mkdir -p /etc/cdi
fairlead cdi generate --simulate h100x8 --output /etc/cdi/
fairlead cdi generate --simulate h100x8 > old.yaml
cp old.yaml new.yaml
printf '{"ociVersion": "1.0.2", "process": {"env": []}, "linux": {}}' > config.json
"""
PAGES_READ = {
    "how-to/docker-users.md": _SERVICE,
    "how-to/run-containers.md": _SERVICE + _CONTAINERS,
    "how-to/simulate-faults.md": _SERVICE,
    "how-to/cdi.md": _SPECS,
    "how-to/generate-cdi.md": "",
    "how-to/share-a-machine.md": "",
}


def enter(suite: str, script: str) -> str:
    """Run a script in the bare root of a suite and return what it printed."""
    root = CACHE / f"root-{suite}"
    if not root.is_dir():
        pytest.skip(f"no root of {suite} here: tests/system/setup.sh makes it")
    argv = (_ENTER, str(root), str(CHECKOUT), "bash", "-ec", script)
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-12000:]
    return done.stdout


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_stranger_installs_and_follows_the_pages_as_printed(suite: str) -> None:
    printed = enter(suite, _FIRST + _ALONE)
    assert "first lines of its output" in printed
    # podman's own warnings are never the container's output
    assert "cgroups-v1" not in printed


@pytest.mark.parametrize("page", sorted(PAGES_READ))
def test_a_how_to_page_works_as_printed(page: str) -> None:
    commands = f"cd /tmp/reader\n{PAGES_READ[page]}\npython3 {_RUNNER} /root/fairlead/docs/{page}\n"
    script = f"mkdir /tmp/reader\ncat > /tmp/page <<'END'\n{commands}END\noffline bash -ex /tmp/page\n"
    enter("bookworm", _FIRST + script)


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_beside_another_service_everything_works_as_printed_and_the_other_one_goes_on(suite: str) -> None:
    printed = enter(suite, _FIRST + _BESIDE)
    assert "keeps its simulated GPUs and their CDI specs to itself" in printed
    assert "\ntheirs\n" in printed


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_wheel_and_package_install_where_they_were_built(suite: str) -> None:
    assert enter(suite, _FIRST + _WAYS).splitlines().count("fairlead 0.1.0") == 4


def test_the_unit_ring_passes_on_debian_13() -> None:
    printed = enter("trixie", _UNITS)
    assert "Python 3.13" in printed
