"""The Debian package under a real systemd: installed, started, restarted, killed and taken away, on Debian 12 and 13.

systemd is process 1 of a namespace with a cgroup v2 of its own (`systemdroot.sh`), so containers are scopes below
machine.slice, as on any Debian machine. The install page's commands for systemd run there as printed.
"""

from __future__ import annotations

import pytest
from debianroot import SUITES, bare, enter

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(900)]
_PACKAGE = """
make deb
apt-get install -y -qq --no-install-recommends ./dist/fairlead_*.deb systemd systemd-sysv dbus man-db netavark iproute2
apt-get install -y -qq --no-install-recommends busybox-static
cat > /tmp/typed <<'END'
%s
END
tests/system/systemdroot.sh / /tmp/typed
"""
_SIMULATED = """
mkdir -p /etc/fairlead
printf '[silicon]\\nsimulate = "h100x8"\\n' > /etc/fairlead/config.toml
"""
_LIFE = """
systemd-analyze verify fairlead.service
systemctl start fairlead
systemctl show -p Type -p ActiveState fairlead
fairlead image demo
fairlead run -g 2 localhost/demo -- nvidia-smi -L
fairlead run -d --name train -g 4 localhost/demo -- sleep 600
fairlead wait train --state started
container=$(podman ps -q)
until_up() { for _ in $(seq 300); do ! fairlead status > /dev/null 2>&1 || return 0; sleep 0.1; done; false; }

systemctl restart fairlead
[ "$(podman ps -q)" = "$container" ]

kill -9 "$(systemctl show -p MainPID --value fairlead)"
until_up
systemctl show -p NRestarts fairlead
[ "$(podman ps -q)" = "$container" ]
fairlead exec train -- nvidia-smi -L

systemctl stop fairlead
[ "$(podman ps -q)" = "$container" ]
systemctl start fairlead
fairlead ps
fairlead doctor

fairlead down
for _ in $(seq 100); do [ "$(systemctl is-active fairlead)" = inactive ] && break; sleep 0.1; done
[ "$(systemctl is-active fairlead)" = inactive ]
[ -z "$(podman ps -q)" ]

systemctl enable --now fairlead
fairlead service install --simulate t4x4
fairlead status
apt-get purge -y -q fairlead
[ ! -e /etc/systemd/system/fairlead.service ]
[ "$(systemctl is-active fairlead)" = inactive ]
[ -z "$(systemctl --failed --no-legend)" ]
"""
_PAGE = """
cd /root/fairlead
export SYSTEMD_PAGER=cat
python3 tests/system/pages.py --plain --skip make --skip apt --skip pip --skip uv \
  --skip .cache/client docs/how-to/install.md
[ -z "$(systemctl --failed --no-legend)" ]
"""


@pytest.mark.parametrize("suite", SUITES)
def test_the_package_runs_under_systemd_through_restarts_kills_and_its_own_end(suite: str) -> None:
    printed = enter(bare(suite), _PACKAGE % (_SIMULATED + _PAGE + _LIFE))
    assert "$ fairlead service uninstall" in printed
    assert "Type=notify\nActiveState=active" in printed
    assert "NRestarts=1" in printed
    assert printed.count("GPU 1: NVIDIA H100 80GB HBM3") == 2
    assert "SIMULATED (t4x4)" in printed
