"""An OpenID Connect provider that tests can have lie: the least of one, on loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from joserfc import jwk, jwt

CLIENT, SECRET = "fairlead", "s3cret:/+ word"


class FakeProvider:
    """What it answers with is in its fields."""

    def __init__(self) -> None:
        self.issuer = ""
        self.keys = [jwk.RSAKey.generate_key(2048, {"kid": "one"}, private=True)]
        self.signer: Any = None
        self.algorithm = "RS256"
        self.claims: dict[str, Any] = {"sub": "s-ann", "preferred_username": "ann"}
        self.userinfo: dict[str, Any] = {}
        self.changed: dict[str, Any] = {}
        """Over the claims that are right; None takes one away."""
        self.metadata: dict[str, Any] = {}
        self.raw = b""
        """In place of the discovery document."""
        self.asked: dict[str, str] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.pending = 0
        self.key_fetches = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/.well-known/openid-configuration", self._discovery),
            web.get("/keys", self._keys),
            web.post("/token", self._token),
            web.get("/me", self._me),
            web.post("/device", self._device),
        ]

    def consent(self, url: str) -> dict[str, str]:
        """Be the person in the browser: return what the provider sends the browser back with."""
        self.asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
        self.codes["c0de"] = self.asked
        return {"code": "c0de", "state": self.asked["state"]}

    async def _discovery(self, _: web.Request) -> web.Response:
        at = self.issuer
        if self.raw:
            return web.Response(body=self.raw, content_type="application/json")
        found = {
            "issuer": at,
            "authorization_endpoint": f"{at}/authorize",
            "token_endpoint": f"{at}/token",
            "jwks_uri": f"{at}/keys",
            "userinfo_endpoint": f"{at}/me",
            "device_authorization_endpoint": f"{at}/device",
            "id_token_signing_alg_values_supported": ["RS256", "none", "HS256"],
        }
        return web.json_response({**found, **self.metadata})

    async def _keys(self, _: web.Request) -> web.Response:
        self.key_fetches += 1
        return web.json_response({"keys": [one.as_dict(private=False) for one in self.keys]})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        pair = ":".join(urllib.parse.quote_plus(one) for one in (CLIENT, SECRET))
        if request.headers.get("authorization") != f"Basic {base64.b64encode(pair.encode()).decode()}":
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["grant_type"].endswith("device_code"):
            self.pending -= 1
            if self.pending >= 0:
                return web.json_response({"error": "authorization_pending"}, status=400)
            return web.json_response({"id_token": self.token(None), "access_token": "a"})
        asked = self.codes.pop(form["code"], None)
        if asked is None or asked["redirect_uri"] != form["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if asked["code_challenge"] != base64.urlsafe_b64encode(digest).rstrip(b"=").decode():
            return web.json_response({"error": "invalid_grant", "error_description": "PKCE"}, status=400)
        return web.json_response({"id_token": self.token(asked["nonce"]), "access_token": "a"})

    def token(self, nonce: str | None) -> str:
        now = int(time.time())
        right = {"iss": self.issuer, "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": nonce, **self.claims}
        claims = {name: value for name, value in {**right, **self.changed}.items() if value is not None}
        header = {"alg": self.algorithm, "kid": self.keys[0].kid}
        return jwt.encode(header, claims, self.signer or self.keys[0], algorithms=[self.algorithm])

    async def _me(self, _: web.Request) -> web.Response:
        return web.json_response({"sub": self.claims["sub"], **self.userinfo})

    async def _device(self, _: web.Request) -> web.Response:
        more = {"verification_uri": f"{self.issuer}/go", "interval": 1, "expires_in": 60}
        return web.json_response({"device_code": "d", "user_code": "ABCD-EFGH", **more})


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[FakeProvider]:
    """Give a provider that answers."""
    made = FakeProvider()
    app = web.Application()
    app.add_routes(made.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    made.issuer = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        await runner.cleanup()
