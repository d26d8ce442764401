"""The API on TLS over a real cluster: people with keys and no kubeconfig, held to their tenancies.

`fairlead api` runs with the token of the chart's account, so what its role or its policy does not allow is denied here
too. The ring enforces no network policies: tenancies are ready by the word of an administrator, as in
`test_tenancies_on_cluster`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from fairlead.store.kubernetes import rights
from fairlead_cdi import yamltext
from tests.cluster import charts, denials, node
from tests.cluster.verb import Verb, running
from tests.unit.cli.admin import access
from tools.cluster import api, home, image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

_SPACE: Final = "gpus"
_DEVICES: Final = "/apis/fairlead.dev/v1alpha1/gpudevices"
_TENANCIES: Final = "/apis/fairlead.dev/v1alpha1/tenancies"
_AT_REST: Final = ("DaemonSet", "Deployment", "PersistentVolumeClaim")
_VALUES: Final[dict[str, Any]] = {
    "tenancies": {"enabled": True},
    "namespace": {"create": True},
    "api": {"enabled": True},
}


@dataclass(frozen=True)
class Person:
    """`fairlead` as somebody with a home of their own calls it; no kubeconfig is anywhere."""

    home: Path
    socket: Path | None = None
    """The API's own, which only the administrator has."""

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        named = {"FAIRLEAD_API_SOCKET": str(self.socket or self.home / "none.sock")}
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.home), "FAIRLEAD_STATE_RUN": "/none", **named}
        command = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=200)

    def ok(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout + done.stderr)
        return done.stdout


@pytest.fixture(scope="module")
def applied(cluster: home.Cluster) -> Iterator[None]:
    """The chart with the API, but for what would run pods."""
    found = charts.render(_VALUES, namespace=_SPACE)
    text = "".join(f"---\n{yamltext.dump(item)}" for item in found if item["kind"] not in _AT_REST)
    node.kubectl(cluster, "apply", "-f", "-", stdin=text)
    node.kubectl(cluster, "wait", "--for=condition=Established", "crd/tenancies.fairlead.dev", "--timeout=60s")
    yield
    node.kubectl(cluster, "delete", "-f", "-", "--wait", stdin=text, timeout_s=180)


@pytest.fixture
def agent(applied: None, cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """An agent that publishes its GPUs: the console's map shows them."""
    arguments = (*node.BREAKABLE, str(cluster.kubeconfig), cluster.node)
    with node.running(node.Agent(cluster, arguments), server) as one:
        server.until(
            _DEVICES, lambda items: items if len(items) == 8 else None, what="eight GPUs are published", timeout_s=60
        )
        yield one
    server.delete(_DEVICES)


def _kubeconfig(cluster: home.Cluster, server: api.API, who: str, folder: Path) -> Path:
    path = f"/api/v1/namespaces/{_SPACE}/serviceaccounts/fairlead-{who}/token"
    token = server.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    written = folder / f"{who}.kubeconfig"
    written.write_text(yaml.safe_dump(config))
    return written


@dataclass(frozen=True)
class Service:
    """What runs, and who may use it."""

    root: Person
    folder: Path
    verb: Verb

    def log_in(self, name: str) -> Person:
        """Return a person who has logged in with a key of theirs."""
        there = json.loads(self.root.ok("status", "-o", "json"))
        key = self.root.ok("key", "create", "--user", name)
        own = self.folder / name
        own.mkdir()
        person = Person(own)
        port = there["address"].rpartition(":")[2]
        said = person.ok("login", f"https://127.0.0.1:{port}", "--fingerprint", there["fingerprint"], stdin=key)
        assert name in said
        return person


@pytest.fixture
def service(applied: None, cluster: home.Cluster, server: api.API, tmp_path: Path) -> Iterator[Service]:
    """Controller, scheduler and API with their own accounts' rights, and two tenancies with members."""

    def verb(who: str, *arguments: str) -> Verb:
        return Verb(who, _kubeconfig(cluster, server, who, tmp_path), tmp_path / f"{who}.log", arguments)

    own = f"--cluster-namespace={_SPACE}"
    keeping = ("--control-tenancies", "--control-tenancy-resync-s=1", "--control-tenancy-enforcer=networkpolicy")
    serving = ("--api-listen=127.0.0.1:0", "--api-names=gpus.example", "--api-key-rate=0", "--api-address-rate=0")
    folders = (f"--state-folder={tmp_path}", f"--state-run={tmp_path / 'run'}")
    with (
        running(verb("controller", own, *keeping)),
        running(verb("scheduler", own)),
        running(verb("api", own, *serving, *folders)) as serving_api,
    ):
        serving_api.until_logged("serving the API", timeout_s=120)
        root = Person(tmp_path, socket=tmp_path / "run" / "api.sock")
        _until(lambda: root.run("status").returncode == 0, "the API answers on its socket")
        for name in ("red", "blue"):
            root.ok("tenancy", "create", name)
        for name, role, tenancy in (("ann", "developer", "red"), ("ben", "owner", "blue"), ("op", "", "")):
            root.ok("user", "create", name, *(() if role else ("--administrator",)))
            if role:
                root.ok("user", "grant", name, role, "-T", tenancy)
        yield Service(root=root, folder=tmp_path, verb=serving_api)
        for item in server.get(_TENANCIES)["items"]:
            node.kubectl(cluster, "delete", "tenancy", item["metadata"]["name"], "--wait", timeout_s=180)


def _until(found: Any, what: str, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.3)


def test_people_with_keys_run_enter_and_see_their_own_tenancy_alone(
    agent: node.Agent, service: Service, server: api.API, denied: denials.Denials
) -> None:
    there = json.loads(service.root.ok("status", "-o", "json"))
    assert there["address"].startswith("https://gpus.example:")
    ann, ben = service.log_in("ann"), service.log_in("ben")

    done = ann.run("run", "--name", "ends", "-g", "1", image.BUSYBOX, "--", "sh", "-c", "echo ran; ls /dev; exit 3")
    assert (done.returncode, "ran\n" in done.stdout, "nvidia" in done.stdout) == (3, True, True), done
    ann.ok("run", "-d", "--name", "train", "-g", "2", image.BUSYBOX, "--", "sh", "-c", "echo begun; exec sleep 1000")
    ann.ok("wait", "train", "--state", "started")
    assert ann.ok("logs", "train") == "begun\n"
    assert ann.ok("exec", "train", "--", "sh", "-c", "echo inside") == "inside\n"
    assert ann.run("exec", "-i", "train", "--", "cat", stdin="fed\n").stdout == "fed\n"
    source = service.folder / "file"
    source.write_text("copied")
    ann.ok("cp", str(source), "train:/tmp/file")
    assert ann.ok("exec", "train", "--", "cat", "/tmp/file") == "copied"
    assert ann.run("exec", "train", "--", "sh", "-c", "exit 5").returncode == 5

    space = next(
        item["status"]["namespace"] for item in server.get(_TENANCIES)["items"] if item["metadata"]["name"] == "red"
    )
    for words in (("logs", "train"), ("exec", "train", "--", "true"), ("rm", "-f", "train"), ("trace", "train")):
        refused, nowhere = (ben.run(words[0], "-n", where, *words[1:]) for where in (space, "t-none-000000"))
        assert refused.returncode == 2, (words, refused.stderr)
        assert refused.stderr == nowhere.stderr.replace("t-none-000000", space)
    assert ben.run("ps", "-A", "-o", "name").stdout == ""
    assert json.loads(ann.ok("ps", "-o", "json"))[0]["name"] == "train"
    _assert_the_console_shows_the_cluster(service)
    _assert_the_policy_keeps_the_api_out(service, denied)
    assert "would be accepted, asking for 7 x nvidia.com/gpu" in ann.ok("run", "--dry-run", "-g", "7", image.BUSYBOX)
    refused = ann.run("run", "--dry-run", "--name", "train", "-g", "1", image.BUSYBOX)
    assert (refused.returncode, 'container "train" already exists' in refused.stderr) == (4, True), refused.stderr
    use = json.loads(ann.ok("stats", "--no-stream", "-o", "json", "train"))[0]
    assert (use["memory_bytes"] > 0, use["cpu_ns"] > 0, use["processes"] >= 1) == (True, True, True), use
    before = json.loads(ann.ok("inspect", "train"))[0]["uid"]
    ann.ok("restart", "-t", "1", "train")
    ann.ok("wait", "train", "--state", "started")
    assert ann.ok("logs", "train") == "begun\n"
    assert json.loads(ann.ok("inspect", "train"))[0]["uid"] != before
    manifest = service.folder / "pod.yaml"
    container = {"name": "main", "image": image.BUSYBOX, "command": ["echo", "of a manifest"]}
    manifest.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "written"},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            }
        )
    )
    assert ann.ok("run", "-f", str(manifest)) == "of a manifest\n"
    ann.ok("rm", "written")
    ann.ok("stop", "train")
    # It has ended; its record goes with the pod, once the kubelet says so.
    _until(lambda: ann.ok("ps", "-a", "-o", "name") == "ends\n", "the record of what was stopped is gone")


def test_a_tenancys_secrets_are_written_given_and_never_read(service: Service, cluster: home.Cluster) -> None:
    ann, ben = service.log_in("ann"), service.log_in("ben")
    assert ann.run("secrets", "create", "db", "-", stdin="rosebud\n").stdout == "db\n"
    given = ("--secret", "db=TOKEN", "--secret", "db", "--secret", "db:/etc/token")
    script = "echo $TOKEN; cat /run/secrets/db /etc/token"
    assert ann.ok("run", *given, image.BUSYBOX, "--", "sh", "-c", script) == "rosebud\nrosebudrosebud"
    first = json.loads(ann.ok("secrets", "show", "db", "-o", "json"))[0]
    assert ann.run("secrets", "create", "--replace", "db", "-", "--key", "other", stdin="sled").stdout == "db\n"
    shown = json.loads(ann.ok("secrets", "list", "-o", "json"))
    assert [list(one["digests"]) for one in (first, *shown)] == [["value"], ["other"]]
    assert ann.ok("run", "--secret", "db", image.BUSYBOX, "--", "cat", "/run/secrets/db") == "sled"
    assert ben.ok("secrets", "list", "-o", "name") == ""
    refused = ben.run("run", "--secret", "db", image.BUSYBOX)
    assert (refused.returncode, 'secret "db" not found' in refused.stderr) == (2, True)

    account = f"--as=system:serviceaccount:{_SPACE}:fairlead-api"
    for verb in ("get", "list", "watch"):
        asked = cluster.kubectl("auth", "can-i", verb, "secrets", "-A", account)
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert answer.stdout.strip() == "no", (verb, answer.stderr)
    ann.ok("secrets", "delete", "db")
    assert ann.ok("secrets", "list", "-o", "name") == ""


def _assert_the_console_shows_the_cluster(service: Service) -> None:
    there = json.loads(service.root.ok("status", "-o", "json"))
    address = f"https://127.0.0.1:{there['address'].rpartition(':')[2]}"
    headers = {"accept": "text/html", "origin": address}
    with httpx.Client(base_url=address, verify=False, headers=headers, timeout=60, trust_env=False) as browser:  # noqa: S501 its own certificate
        # Its fingerprint is what people compare; `log_in` did.
        key = service.root.ok("key", "create", "--user", "op").strip()
        assert browser.post("/console/login", data={"key": key}).status_code == 303
        text = browser.get("/console/").text
        assert ("H100" in text, "6 of 8 free" in text) == (True, True)
        assert ">train</a>" in browser.get("/console/containers").text
        assert "Ready" in browser.get("/console/tenancies").text
        for page in ("/queue", "/usage", "/machine", "/volumes", "/keys", "/webhooks", "/audit"):
            assert browser.get(f"/console{page}").status_code == 200, page


def _assert_the_policy_keeps_the_api_out(service: Service, denied: denials.Denials) -> None:
    """The API's own account makes and enters nothing where no tenancy is, for an administrator too."""
    op = service.log_in("op")
    refused = op.run("run", "-d", "-n", "default", "--name", "stray", image.BUSYBOX)
    assert refused.returncode == 3, refused.stderr
    assert "in namespaces of tenancies only" in refused.stderr
    # The policy's answer is the point here, and no right that the role lacks.
    assert [one for one in denied.take() if '"stray"' not in one or "ValidatingAdmissionPolicy" not in one] == []


def test_the_role_is_exactly_what_the_page_and_the_table_say() -> None:
    found = access.granted(charts.render(_VALUES, namespace=_SPACE), "fairlead-api")
    assert found == access.documented("api")
    own = {("list", "leases")}  # of its namespace, and it goes on without
    assert found - own == {(one.verb, one.full) for one in rights.API}


def test_the_api_is_for_clusters_with_tenancies() -> None:
    with pytest.raises(SystemExit, match="needs tenancies"):
        charts.render({"api": {"enabled": True}}, namespace=_SPACE)


def test_a_port_is_opened_in_a_browser_through_the_api_server(service: Service, server: api.API) -> None:
    """`Open` is carried by the API server's port-forward, for who may enter the container, and ends with it."""
    ann, ben = service.log_in("ann"), service.log_in("ben")
    serves = "mkdir /tmp/www; echo inside > /tmp/www/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp/www"
    ann.ok("run", "-d", "--name", "serves", image.BUSYBOX, "--", "sh", "-c", serves)
    ann.ok("wait", "serves", "--state", "started")
    found = urllib.parse.urlsplit(ann.ok("open", "serves", "8080").strip())
    assert (found.hostname or "").endswith(".apps.localhost")
    base = f"https://127.0.0.1:{found.port}"
    with httpx.Client(base_url=base, verify=False, headers={"host": found.netloc}, timeout=60, trust_env=False) as tab:  # noqa: S501 its own certificate
        assert tab.get("/").status_code == 401
        landed = tab.get(f"{found.path}?{found.query}")
        assert (landed.status_code, "__Host-fairlead-open" in landed.headers["set-cookie"]) == (303, True), landed.text
        own = {"cookie": landed.headers["set-cookie"].partition(";")[0]}
        page = tab.get("/", headers=own)
        assert (page.status_code, page.text) == (200, "inside\n")
        assert tab.get("/none", headers=own).status_code == 404
        again = {"host": found.netloc}  # who has the cookie is led on by a spent ticket too, so another client asks
        spent = httpx.get(f"{base}{found.path}?{found.query}", headers=again, verify=False, timeout=60, trust_env=False)  # noqa: S501 as above
        assert spent.status_code == 401, (spent.text, spent.headers)
        space = next(
            item["status"]["namespace"] for item in server.get(_TENANCIES)["items"] if item["metadata"]["name"] == "red"
        )
        assert ben.run("open", "-n", space, "serves", "8080").returncode == 2
        ann.ok("rm", "-f", "serves")
        _until(lambda: tab.get("/", headers=own).status_code in {401, 404}, "it ends with its container")
