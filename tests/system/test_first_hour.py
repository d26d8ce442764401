"""A stranger's first hour on bare Debian 12 and 13: install, demo and tutorial as printed, 80 columns, no colour.

Each root has nothing but Debian's base and make. The README's first command runs with the machine's network, for
package mirrors; everything after it with a loopback only. On Debian 13 that is Python 3.13, podman 5.4 and netavark.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from debianroot import SUITES, bare, build, enter

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(1200)]
_RUNNER = "/root/fairlead/tests/system/pages.py --plain --timeout 600"
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
_UNIT = "--skip 'fairlead service' --skip 'fairlead status' --skip journalctl"
# Every way to install, one after the other in one root; the unit of systemd has a test of its own.
_WAYS = f"""
apt-get update -qq
apt-get install -y -qq --no-install-recommends pipx
export PATH=$PWD/.cache/uv/bin:$PATH UV_TOOL_DIR=/tmp/uv UV_TOOL_BIN_DIR=/tmp/uv/bin
export PIPX_HOME=/tmp/pipx PIPX_BIN_DIR=/tmp/pipx/bin
{_PAGES.replace("--plain ", "")} {_UNIT} --skip 'apt remove' docs/how-to/install.md
for program in /usr/bin/fairlead /tmp/uv/bin/fairlead /tmp/pipx/bin/fairlead .cache/venv/bin/fairlead; do
  $program --version
  $program up --help > /dev/null
done
test ! -e /usr/local/bin/fairlead
dpkg -L fairlead | grep -F -e /usr/lib/systemd/system/fairlead.service
dpkg -L fairlead | grep -F -e /usr/share/man/man1/fairlead-run.1.gz
dpkg -L fairlead | grep -F -e /usr/share/bash-completion/completions/fairlead
apt-get remove -y -qq fairlead
test ! -e /usr/bin/fairlead
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
_HELD = """
fairlead run -d --name train -g 1 localhost/demo -- sleep 1000
# Its GPU shows it once the agent has read the kubelet's list.
for _ in $(seq 300); do curl -s http://127.0.0.1:9400/metrics | grep -q train && break; sleep 0.1; done
"""
_CONTAINERS = """
fairlead run -d --name train localhost/demo -- sh -c 'until [ -e /end ]; do sleep 1; done'
# It ends as soon as the reader waits for its end.
(until grep -qz '^wait$' /proc/[0-9]*/cmdline; do sleep 1; done; fairlead exec train touch /end) 2> /dev/null &
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
_ISOLATION = """
for name in train infer; do fairlead run -d --name $name -g 1 localhost/demo -- sleep 1000; done
fairlead wait infer --state started
fairlead exec infer -- rm /dev/nvidia1
"""
_TEMPLATES = r"""
cat >/root/templates.toml <<'END'
[page]
image = "localhost/demo"
command = ["sleep", "1000"]
home = "/home/me"
port = 8000
path = "/?token={token}"
token = "PAGE_TOKEN"
END
export FAIRLEAD_SESSION_TEMPLATES=/root/templates.toml
"""
_POST = r"""
cat >post.py <<'END'
import http.server, pathlib, socketserver, threading
class Mail(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 sink\r\n")
        for line in self.rfile:
            if line[:4] == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                while self.rfile.readline() not in (b".\r\n", b""):
                    pass
            self.wfile.write(b"250 ok\r\n")
class Chat(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words): pass
mail = socketserver.ThreadingTCPServer(("127.0.0.1", 2525), Mail)
threading.Thread(target=mail.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 9000), Chat).serve_forever()
END
python3 post.py &
"""
PAGES_READ = {
    "how-to/audit-isolation.md": _SERVICE + _ISOLATION,
    "how-to/configure-an-engine.md": "mkdir -p /etc/udev/rules.d\n",
    "how-to/metrics.md": _SERVICE + _HELD,
    "how-to/mig.md": "export FAIRLEAD_SILICON_SIMULATE=h100x8\n",
    "how-to/replace-nvidia-device-plugin.md": "export FAIRLEAD_SILICON_SIMULATE=h100x8\nmkdir /etc/nvidia\n",
    "how-to/from-docker.md": _SERVICE,
    "how-to/run-containers.md": _SERVICE + _CONTAINERS,
    "how-to/pods.md": _SERVICE,
    "how-to/reserve.md": _SERVICE,
    "how-to/idle-gpus.md": _SERVICE,
    "how-to/sessions.md": _TEMPLATES + _SERVICE,
    "how-to/secrets.md": _SERVICE,
    "how-to/simulate-faults.md": _SERVICE,
    "how-to/cdi.md": _SPECS,
    "how-to/generate-cdi.md": "",
    "how-to/share-a-machine.md": "",
    "how-to/tenancies.md": "apt-get install -y -qq --no-install-recommends iptables\n",
    "how-to/accounts.md": "apt-get install -y -qq --no-install-recommends curl\n",
    "how-to/webhooks.md": "apt-get install -y -qq --no-install-recommends iptables\n",
    "how-to/notices.md": _POST,
    "how-to/share-a-gpu.md": "",
    "how-to/lend-vgpus.md": "",
    "how-to/usage.md": "",
    "how-to/keep-gpus-back.md": "",
    "how-to/neighbours.md": "",
    "how-to/backup.md": "",
    "how-to/scheduling.md": "",
    "how-to/claims.md": "",
    "how-to/claims-on-one-machine.md": "",
    "how-to/migrate-to-claims.md": "",
}


@pytest.mark.parametrize("suite", SUITES)
def test_a_stranger_installs_and_follows_the_pages_as_printed(suite: str) -> None:
    printed = enter(bare(suite), _FIRST + _ALONE)
    assert "first lines of its output" in printed
    # podman's own warnings are never the container's output
    assert "cgroups-v1" not in printed


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root in which Fairlead is installed, with what single pages look at."""
    folder = tmp_path_factory.mktemp("installed")
    return build(bare("trixie"), _FIRST + "apt-get install -y -qq --no-install-recommends curl containerd\n", folder)


@pytest.mark.parametrize("page", sorted(PAGES_READ))
def test_a_how_to_page_works_as_printed(page: str, installed: Path) -> None:
    commands = f"cd /tmp/reader\n{PAGES_READ[page]}\n{_PAGES} /root/fairlead/docs/{page}\n"
    enter(installed, f"mkdir /tmp/reader\ncat > /tmp/page <<'EOF'\n{commands}EOF\noffline bash -ex /tmp/page\n")


@pytest.mark.parametrize("suite", SUITES)
def test_beside_another_service_everything_works_as_printed_and_the_other_one_goes_on(suite: str) -> None:
    printed = enter(bare(suite), _FIRST + _BESIDE)
    assert "keeps its simulated GPUs and their CDI specs to itself" in printed
    assert "\ntheirs\n" in printed


@pytest.mark.parametrize("suite", SUITES)
def test_every_way_to_install_works_as_printed(suite: str) -> None:
    assert enter(bare(suite), _WAYS).splitlines().count("fairlead 0.1.0") == 6


@pytest.mark.timeout(3600)
def test_the_unit_ring_passes_on_debian_13() -> None:
    printed = enter(bare("trixie"), _UNITS)
    assert "Python 3.13" in printed
