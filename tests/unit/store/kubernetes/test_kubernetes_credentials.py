"""Kubeconfig files, service accounts and exec plugins: which is meant, what is refused, how they stay fresh."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead import errors
from fairlead.store.kubernetes import client, credentials
from fairlead.wire.kubernetes import kubeconfig
from tests.unit.store.kubernetes import scriptedserver as scripted
from tools.cluster import certificate

GET = client.Request(method="GET", path="/api/v1/pods")


def config(*, user: Mapping[str, Any], server: str = "https://one:6443", **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "one", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [
            {"name": "here", "context": {"cluster": "one", "user": "me", "namespace": "team"}},
            {"name": "nobody", "context": {"cluster": "one", "user": "ghost"}},
            {"name": "nowhere", "context": {"cluster": "ghost", "user": "me"}},
            {"name": "anonymous", "context": {"cluster": "one"}},
        ],
    }


def written(path: Path, content: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(content)))
    return path


def plugin(folder: Path, script: str, **exec_: Any) -> dict[str, Any]:
    program = folder / "plugin.sh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), **exec_}}


def credential(**status: Any) -> str:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"echo '{json.dumps(answer)}'"


async def headers(path: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    access = credentials.from_files([path], env={"PATH": "/usr/bin:/bin", **(env or {})})
    return dict(await credentials.Credentials(access).headers())


def test_the_current_context_is_meant_unless_another_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "config", config(user={"token": "t"}))
    here = credentials.from_files([path], env={})
    assert (here.cluster.server, here.user.token, here.namespace) == ("https://one:6443", "t", "team")
    assert credentials.from_files([path], env={}, context="anonymous").user.token is None


@pytest.mark.parametrize(
    ("context", "reason"),
    [("absent", "ContextUnknown"), ("nobody", "UserUnknown"), ("nowhere", "ClusterUnknown")],
)
def test_names_that_lead_nowhere_are_refused(tmp_path: Path, context: str, reason: str) -> None:
    path = written(tmp_path / "config", config(user={}))
    with pytest.raises(errors.Invalid) as refused:
        credentials.from_files([path], env={}, context=context)
    assert refused.value.reason == reason


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    user: dict[str, Any] = {"client-certificate": "me.crt", "client-key": "/keys/me.key", "tokenFile": "token"}
    user |= {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "bin/plugin"}}
    content = config(user=user, **{"certificate-authority": "ca.crt"})
    found = credentials.from_files([written(tmp_path / "kube" / "config", content)], env={})
    home = tmp_path / "kube"
    assert found.cluster.certificate_authority == str(home / "ca.crt")
    assert (found.user.client_certificate, found.user.client_key) == (str(home / "me.crt"), "/keys/me.key")
    assert found.user.token_file == str(home / "token")
    assert found.user.exec is not None
    assert found.user.exec.command == str(home / "bin/plugin")


def test_several_files_are_one_and_the_first_wins(tmp_path: Path) -> None:
    first = config(user={"token": "first"})
    del first["current-context"], first["clusters"]
    second = config(user={"token": "second"})
    paths = [written(tmp_path / "a", first), written(tmp_path / "b", second)]
    found = credentials.find({"KUBECONFIG": ":".join(map(str, paths))}, home=tmp_path)
    assert (found.cluster.server, found.user.token) == ("https://one:6443", "first")


def test_a_named_file_comes_before_the_environment_and_that_before_home(tmp_path: Path) -> None:
    home = written(tmp_path / ".kube" / "config", config(user={"token": "home"}))
    other = written(tmp_path / "other", config(user={"token": "other"}))
    named = written(tmp_path / "named", config(user={"token": "named"}))
    assert home.exists()
    assert credentials.find({}, home=tmp_path).user.token == "home"
    env = {"KUBECONFIG": str(other)}
    assert credentials.find(env, home=tmp_path).user.token == "other"
    assert credentials.find(env, home=tmp_path, file=named).user.token == "named"


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_uses_its_service_account(tmp_path: Path, host: str, server: str) -> None:
    folder = tmp_path / "var/run/secrets/kubernetes.io/serviceaccount"
    folder.mkdir(parents=True)
    for name, text in (("token", "t\n"), ("namespace", "team\n"), ("ca.crt", "")):
        (folder / name).write_text(text)
    env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    found = credentials.find(env, home=tmp_path, root=tmp_path)
    assert (found.cluster.server, found.namespace) == (server, "team")
    assert found.user.token_file == str(folder / "token")


def test_without_any_configuration_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match=r"\.kube/config"):
        credentials.find({}, home=tmp_path)
    with pytest.raises(errors.Unavailable, match="absent"):
        credentials.find({}, home=tmp_path, file=tmp_path / "absent")


@pytest.mark.parametrize("text", ["[", "just words", "clusters: 7", "users: [{user: {token: 7}}]", "a: &a [*a]"])
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(errors.FairleadError):
        credentials.from_files([path], env={})


@pytest.mark.parametrize(
    "user",
    [
        {"auth-provider": {"name": "gcp"}},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "interactiveMode": "Always"}},
    ],
)
def test_credentials_that_cannot_be_used_are_refused(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(errors.Invalid) as refused:
        credentials.from_files([written(tmp_path / "config", config(user=user))], env={})
    assert refused.value.reason == "CredentialsUnsupported"


def test_a_socks_proxy_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "config", config(user={}, **{"proxy-url": "socks5://p:1"}))
    with pytest.raises(errors.Invalid):
        credentials.from_files([path], env={})


async def test_passwords_and_impersonation_become_headers(tmp_path: Path) -> None:
    user = {"username": "a", "password": "b", "as": "jane", "as-uid": "7", "as-groups": ["x", "y"]}
    path = written(tmp_path / "config", config(user=user, server="http://one"))
    found = await credentials.Credentials(credentials.from_files([path], env={})).headers()
    assert found == [
        ("Authorization", "Basic " + base64.b64encode(b"a:b").decode()),
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "x"),
        ("Impersonate-Group", "y"),
    ]


async def test_whoever_asks_while_a_token_is_read_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    path = written(tmp_path / "config", config(user={"tokenFile": str(tmp_path / "token")}))
    one = credentials.Credentials(credentials.from_files([path], env={}))
    both = await asyncio.gather(one.headers(), one.headers())
    assert list(both) == [[("Authorization", "Bearer secret")]] * 2


async def test_a_token_that_could_not_be_read_is_read_again_and_nobody_goes_without(tmp_path: Path) -> None:
    path = written(tmp_path / "config", config(user={"tokenFile": str(tmp_path / "token")}))
    one = credentials.Credentials(credentials.from_files([path], env={}))
    with pytest.raises(errors.Unavailable, match="cannot read"):
        await one.headers()
    (tmp_path / "token").write_text("secret\n")
    assert await one.headers() == [("Authorization", "Bearer secret")]


async def test_an_exec_plugin_gives_a_token_and_sees_what_it_may(tmp_path: Path) -> None:
    script = (
        f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; echo "$EXTRA $GIVEN $1" > {tmp_path}/seen\n'
        + credential(token="secret")
    )
    user = plugin(tmp_path, script, args=["login"], env=[{"name": "EXTRA", "value": "x"}], provideClusterInfo=True)
    path = written(tmp_path / "config", config(user=user, server="http://one"))
    assert (await headers(path, {"GIVEN": "y"}))["Authorization"] == "Bearer secret"
    assert (tmp_path / "seen").read_text() == "x y login\n"
    info = json.loads((tmp_path / "info").read_text())
    assert info["spec"] == {"interactive": False, "cluster": {"server": "http://one"}}


@pytest.mark.parametrize(
    ("lives_s", "runs"),
    [(None, 1), (3600, 1), (5, 2)],
)
async def test_an_exec_plugin_is_asked_again_when_its_credentials_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives_s: int | None, runs: int
) -> None:
    until = None if lives_s is None else (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=lives_s)).isoformat()
    status = {"token": "t"} | ({} if until is None else {"expirationTimestamp": until})
    user = plugin(tmp_path, f"echo run >> {tmp_path}/runs\n" + credential(**status))
    access = credentials.from_files([written(tmp_path / "config", config(user=user, server="http://one"))], env={})
    held = credentials.Credentials(access)
    await held.headers()
    later = time.monotonic() + 10
    monkeypatch.setattr(credentials, "_now", lambda: later)
    await held.headers()
    assert (tmp_path / "runs").read_text().count("run") == runs


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("echo 'log in first' >&2; exit 3", errors.Unavailable),
        ("echo nonsense", errors.ProtocolError),
        (credential(), errors.ProtocolError),
        ('echo \'{"apiVersion":"client.authentication.k8s.io/v1beta1","status":{"token":"t"}}\'', errors.ProtocolError),
    ],
)
async def test_an_exec_plugin_that_fails_is_named(
    tmp_path: Path, script: str, kind: type[errors.FairleadError]
) -> None:
    path = written(tmp_path / "config", config(user=plugin(tmp_path, script), server="http://one"))
    with pytest.raises(kind, match=r"plugin\.sh") as failed:
        await headers(path)
    assert "log in first" in failed.value.message or kind is errors.ProtocolError


async def test_an_absent_exec_plugin_says_how_to_get_it(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/absent", "installHint": "get it"}}
    path = written(tmp_path / "config", config(user=user, server="http://one"))
    with pytest.raises(errors.Unavailable) as failed:
        await headers(path)
    assert failed.value.hint == "get it"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's and two clients' certificates."""
    folder = tmp_path_factory.mktemp("tls") / "pairs"
    server = certificate.Pair(name="server", user="server", addresses=("IP:127.0.0.1", "DNS:api.example"))
    certificate.make(folder, [server, certificate.Pair(name="me", user="me"), certificate.Pair(name="you", user="you")])
    return folder


def server_side(pairs: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pairs / "ca.crt"))
    context.load_cert_chain(pairs / "server.crt", pairs / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # a Kubernetes API server is Go's
    return context


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def users(pairs: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    certificates = {
        "clientCertificateData": (pairs / "me.crt").read_text(),
        "clientKeyData": (pairs / "me.key").read_text(),
    }
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": certificates}
    (tmp_path / "answer").write_text(json.dumps(answer))
    return {
        "files": {"client-certificate": str(pairs / "me.crt"), "client-key": str(pairs / "me.key")},
        "data": {"client-certificate-data": encoded(pairs / "me.crt"), "client-key-data": encoded(pairs / "me.key")},
        "exec": plugin(tmp_path, f"cat {tmp_path}/answer"),
    }


@pytest.mark.parametrize("way", ["files", "data", "exec"])
async def test_client_certificates_open_the_door(pairs: Path, tmp_path: Path, way: str) -> None:
    async with scripted.serving(scripted.reply({}), tls=server_side(pairs)) as server:
        content = config(
            user=users(pairs, tmp_path)[way],
            server=server.url,
            **{"certificate-authority-data": encoded(pairs / "ca.crt")},
        )
        access = credentials.from_files([written(tmp_path / "config", content)], env={"PATH": "/usr/bin:/bin"})
        async with client.Client(access, limits=client.LIMITS) as opened:
            assert await opened.request(GET) == b"{}"


async def test_another_server_name_can_be_expected(pairs: Path, tmp_path: Path) -> None:
    async with scripted.serving(scripted.reply({}), tls=server_side(pairs)) as server:
        trust = {"certificate-authority": str(pairs / "ca.crt"), "tls-server-name": "api.example"}
        content = config(user=users(pairs, tmp_path)["data"], server=server.url, **trust)
        access = credentials.from_files([written(tmp_path / "config", content)], env={})
        async with client.Client(access, limits=client.LIMITS) as opened:
            assert await opened.request(GET) == b"{}"


async def test_a_certificate_below_the_authority_can_be_the_one_trusted_as_for_kubectl(
    pairs: Path, tmp_path: Path
) -> None:
    async with scripted.serving(scripted.reply({}), tls=server_side(pairs)) as server:
        trust = {"certificate-authority": str(pairs / "server.crt")}
        content = config(user=users(pairs, tmp_path)["files"], server=server.url, **trust)
        access = credentials.from_files([written(tmp_path / "config", content)], env={})
        async with client.Client(access, limits=client.LIMITS) as opened:
            assert await opened.request(GET) == b"{}"


@pytest.mark.parametrize("trust", [{}, {"tls-server-name": "other.example"}])
async def test_a_server_that_is_not_trusted_is_refused_at_once(
    pairs: Path, tmp_path: Path, trust: dict[str, str]
) -> None:
    async with scripted.serving(scripted.reply({}), tls=server_side(pairs)) as server:
        if trust:
            trust = {**trust, "certificate-authority": str(pairs / "ca.crt")}
        content = config(user=users(pairs, tmp_path)["data"], server=server.url, **trust)
        access = credentials.from_files([written(tmp_path / "config", content)], env={})
        async with client.Client(access, limits=client.LIMITS) as opened:
            with pytest.raises(errors.Unavailable) as refused:
                await opened.request(GET)
        assert refused.value.reason == "TLSRefused"


@pytest.mark.parametrize("field", ["client-certificate-data", "client-key-data"])
def test_data_that_is_no_certificate_is_refused(tmp_path: Path, pairs: Path, field: str) -> None:
    for value in ("not base64!", base64.b64encode(b"no certificate").decode()):
        user = {**users(pairs, tmp_path)["data"], field: value}
        access = credentials.from_files([written(tmp_path / "config", config(user=user))], env={})
        with pytest.raises(errors.FairleadError):
            credentials.Credentials(access)


def test_a_choice_names_default_where_no_namespace_is(tmp_path: Path) -> None:
    path = written(tmp_path / "config", config(user={}))
    assert kubeconfig.choose(kubeconfig.parse(path.read_bytes(), path=path), "anonymous").namespace == "default"


@pytest.mark.parametrize("user", [{"token": "a\r\nX-Other: b"}, {"token": "t", "as": "a\nb"}, {"token": "a\0b"}])
async def test_what_no_header_can_hold_is_refused_and_not_shown(tmp_path: Path, user: dict[str, str]) -> None:
    path = written(tmp_path / "config", config(user=user, server="http://127.0.0.1:1"))
    access = credentials.from_files([path], env={})
    with pytest.raises(errors.ProtocolError, match="control character") as caught:
        await credentials.Credentials(access).headers()
    assert "Other" not in str(caught.value)
