"""Speaks with an OpenID Connect provider: discovery, authorization code with PKCE, device grant, ID tokens.

What a login has to remember (state, nonce, verifier) travels sealed in the browser's own cookie, so that strangers who
begin logins fill no table; the seal's key is this process's. An ID token is taken from the token endpoint alone, never
from a browser or a client, and is verified all the same.
Source: OpenID Connect Core 1.0 sections 3.1.2 to 3.1.3.7; RFC 7636; RFC 8628; RFC 9207.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from cryptography import fernet
from joserfc import errors as jose
from joserfc import jwk, jwt

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.accounts.oidc import mapping
from fairlead.serve.accounts.oidc.port import DeviceStarted, Person, Started

_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a key pair alone: the client's secret signs nothing here."""
_FRESH_S, _AGAIN_S = 3600.0, 10.0
"""How long discovery is cached; shortest time between two fetches of keys for tokens with an unknown key."""
_LOGIN_S: Final = 600
_LEEWAY_S: Final = 60
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts on which a provider is accepted without TLS."""
_MOST: Final = 1 << 20
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)


@frozen
class Config:
    """The provider, and what it knows this service as."""

    issuer: str
    client_id: str
    client_secret: str = ""
    """Empty: a public client, which PKCE alone protects."""
    scopes: str = "openid profile email"
    account_claim: str = "preferred_username"
    rows: tuple[mapping.Row, ...] = ()


class Metadata(msgspec.Struct, frozen=True):
    """What of a provider's discovery document is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    device_authorization_endpoint: str = ""
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class OpenIDProvider:
    """See `port.Provider`."""

    def __init__(self, config: Config, *, now: Callable[[], float] = time.time) -> None:
        """Args: now: Unix seconds. Raises: Invalid (`OIDCIssuerInvalid`)."""
        if not _is_safe(config.issuer):
            message = f'oidc.issuer: "{errors.readable(config.issuer)}" is not an https address'
            raise errors.Invalid(
                message, reason="OIDCIssuerInvalid", hint="as the provider's discovery document has it"
            )
        self.config, self.now = config, now
        self._seal = fernet.Fernet(fernet.Fernet.generate_key())
        self._metadata: tuple[float, Metadata] | None = None
        self._keys: tuple[float, jwk.KeySet] | None = None

    def decide(self, person: Person) -> mapping.Mapped:
        """See `port.Provider.decide`."""
        return mapping.decide(person.claims, self.config.rows, account_claim=self.config.account_claim)

    async def start(self, redirect: str, back: str) -> Started:
        """See `port.Provider.start`."""
        if not _is_own_path(back):
            message = f'"{errors.readable(back[:200])}" is not a path of this service'
            raise errors.RequestError(message, reason="ReturnInvalid", hint="one that begins with a single /")
        found = await self._discover()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "redirect_uri": redirect,
            "scope": self.config.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        joint = "&" if urllib.parse.urlsplit(found.authorization_endpoint).query else "?"
        kept = {"state": state, "nonce": nonce, "verifier": verifier, "back": back}
        return Started(
            url=f"{found.authorization_endpoint}{joint}{urllib.parse.urlencode(asked)}", sealed=self._sealed(kept)
        )

    async def finish(self, redirect: str, sealed: str, answer: Mapping[str, str]) -> Person:
        """See `port.Provider.finish`."""
        kept = self._opened(sealed, _LOGIN_S)
        if "state" not in kept:
            raise _failed("this is not a login of a browser")
        if not hmac.compare_digest(answer.get("state", "").encode(), kept["state"].encode()):
            raise _failed("the answer is not of a login that this browser began")
        found = await self._discover()
        said = answer.get("iss", "" if found.authorization_response_iss_parameter_supported else found.issuer)
        if said != found.issuer:
            raise _failed("the answer is of another provider")
        if "error" in answer:
            raise _failed(f"the provider says {_brief(answer)}")
        form = {
            "grant_type": "authorization_code",
            "code": answer.get("code", ""),
            "redirect_uri": redirect,
            "code_verifier": kept["verifier"],
        }
        status, tokens = await self._post(found.token_endpoint, form, found)
        if status != 200:
            raise _failed(f"the provider refuses the code: {_brief(tokens)}")
        return await self._person(found, tokens, nonce=kept["nonce"], back=kept["back"])

    async def start_device(self) -> DeviceStarted:
        """See `port.Provider.start_device`."""
        found = await self._discover()
        if not found.device_authorization_endpoint:
            message = "the identity provider has no login for devices without a browser"
            hint = "log in with an API key: `fairlead login`"
            raise errors.NotFound(message, reason="DeviceLoginOff", hint=hint)
        status, said = await self._post(found.device_authorization_endpoint, {"scope": self.config.scopes}, found)
        code, user, url = (said.get(name) for name in ("device_code", "user_code", "verification_uri"))
        if status != 200 or not (isinstance(code, str) and isinstance(user, str) and isinstance(url, str)):
            raise _broken(f"its device endpoint answers {status}: {_brief(said)}")
        whole = said.get("verification_uri_complete")
        return DeviceStarted(
            sealed=self._sealed({"device": code}),
            user_code=user,
            url=url,
            whole_url=whole if isinstance(whole, str) else "",
            expires_s=_seconds(said.get("expires_in"), 600.0),
            interval_s=_seconds(said.get("interval"), 5.0),
        )

    async def poll_device(self, sealed: str) -> Person | None:
        """See `port.Provider.poll_device`."""
        kept = self._opened(sealed, 6 * _LOGIN_S)
        if "device" not in kept:
            raise _failed("this is not a login of a device")
        found = await self._discover()
        status, tokens = await self._post(
            found.token_endpoint, {"grant_type": _GRANT, "device_code": kept["device"]}, found
        )
        if tokens.get("error") in {"authorization_pending", "slow_down"}:
            return None
        if status != 200:
            raise _failed(f"the provider says {_brief(tokens)}")
        return await self._person(found, tokens, nonce=None, back="/")

    async def _person(self, found: Metadata, tokens: Mapping[str, Any], *, nonce: str | None, back: str) -> Person:
        text = tokens.get("id_token")
        if not isinstance(text, str):
            raise _broken("its token endpoint answers without an ID token")
        claims = await self._verified(found, text)
        if nonce is not None and not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _failed("the ID token is not of this login (nonce)")
        wanted = {self.config.account_claim, *(one.claim for one in self.config.rows)}
        access = tokens.get("access_token")
        if found.userinfo_endpoint and isinstance(access, str) and not wanted <= claims.keys():
            _, more = await self._fetch("GET", found.userinfo_endpoint, headers={"authorization": f"Bearer {access}"})
            if more.get("sub") != claims["sub"]:
                raise _failed("the provider's user information is of another person")
            claims = _joined(more, claims)
        return Person(issuer=found.issuer, subject=claims["sub"], claims=claims, back=back)

    async def _verified(self, found: Metadata, text: str) -> dict[str, Any]:
        """Return the claims of an ID token. Raises: Unauthenticated (`LoginFailed`)."""
        algorithms = [one for one in _ALGORITHMS if one in found.id_token_signing_alg_values_supported]
        try:
            claims = await self._signed(found, text, algorithms)
            registry = jwt.JWTClaimsRegistry(
                now=lambda: int(self.now()),
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": found.issuer},
                aud={"essential": True, "value": self.config.client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
            )
            registry.validate(claims)
        except (jose.JoseError, ValueError) as error:
            raise _failed(f"the ID token is not accepted: {errors.readable(str(error))}") from error
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.config.client_id) != self.config.client_id:
            raise _failed("the ID token was made for another client (azp)")
        if len(claims["sub"]) > 255:
            raise _failed("the ID token's subject is longer than 255 characters")
        return claims

    async def _signed(self, found: Metadata, text: str, algorithms: Sequence[str]) -> dict[str, Any]:
        """Return what is signed; a key that is not known may be a new one, and keys are then fetched once more."""
        if self._keys is None or self.now() - self._keys[0] > _FRESH_S:
            self._keys = (self.now(), await self._fetch_keys(found))
        fetched_at, known = self._keys
        try:
            return jwt.decode(text, known, algorithms=algorithms).claims
        except (jose.JoseError, ValueError):
            if self.now() - fetched_at < _AGAIN_S:
                raise
            self._keys = (self.now(), await self._fetch_keys(found))
            return jwt.decode(text, self._keys[1], algorithms=algorithms).claims

    async def _fetch_keys(self, found: Metadata) -> jwk.KeySet:
        _, said = await self._fetch("GET", found.jwks_uri)
        try:
            return jwk.KeySet.import_key_set(said)  # type: ignore[arg-type]  # it checks the form
        except (jose.JoseError, ValueError, KeyError, TypeError) as error:
            raise _broken(f"its keys cannot be read: {type(error).__name__}") from error

    async def _discover(self) -> Metadata:
        if self._metadata is not None and self.now() - self._metadata[0] < _FRESH_S:
            return self._metadata[1]
        url = f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration"
        status, said = await self._fetch("GET", url)
        try:
            found = msgspec.convert(said, Metadata)
        except msgspec.ValidationError as error:
            raise _broken(f"{url} answers {status} and not a discovery document: {error}") from error
        if found.issuer != self.config.issuer:
            raise _broken(f'it calls itself "{errors.readable(found.issuer)}"')
        named = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
        optional = (found.userinfo_endpoint, found.device_authorization_endpoint)
        if wrong := [one for one in (*named, *filter(None, optional)) if not _is_safe(one)]:
            raise _broken(f'"{errors.readable(wrong[0])}" is not an https address')
        self._metadata = (self.now(), found)
        return found

    async def _post(self, url: str, form: dict[str, str], found: Metadata) -> tuple[int, dict[str, Any]]:
        one, methods = self.config, found.token_endpoint_auth_methods_supported
        headers: dict[str, str] = {}
        if one.client_secret and "client_secret_basic" in methods:
            pair = ":".join(urllib.parse.quote_plus(part) for part in (one.client_id, one.client_secret))
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif one.client_secret:
            form = {**form, "client_id": one.client_id, "client_secret": one.client_secret}
        if "authorization" not in headers:
            form = {"client_id": one.client_id, **form}
        elif url == found.device_authorization_endpoint:
            form = {**form, "client_id": one.client_id}
        return await self._fetch("POST", url, data=form, headers=headers)

    async def _fetch(self, method: str, url: str, **more: Any) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object of an answer, without redirects. Raises: Unavailable; ProtocolError."""
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as client,
                client.request(method, url, allow_redirects=False, **more) as answer,
            ):
                body = b""
                async for piece in answer.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > _MOST:
                        raise _broken(f"{url} answers with more than a MiB")
                found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _broken(f"{url} does not answer with JSON") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            host = urllib.parse.urlsplit(url).netloc
            message = f"the identity provider at {host} does not answer: {error or type(error).__name__}"
            raise errors.Unavailable(
                message, reason="ProviderUnreachable", hint="setting oidc.issuer names it"
            ) from error
        if not isinstance(found, dict):
            raise _broken(f"{url} does not answer with a JSON object")
        return answer.status, found

    def _sealed(self, kept: dict[str, str]) -> str:
        return self._seal.encrypt_at_time(msgspec.json.encode(kept), int(self.now())).decode()

    def _opened(self, sealed: str, lifetime_s: int) -> dict[str, str]:
        try:
            opened = self._seal.decrypt_at_time(sealed.encode(), lifetime_s, int(self.now()))
        except fernet.InvalidToken as error:
            raise _failed("it was not begun in this browser, or too long ago") from error
        return msgspec.json.decode(opened, type=dict[str, str])


def _joined(more: Mapping[str, Any], claims: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claims of both; those of the ID token count, and an address is verified by the document it is in."""
    hidden = {"email_verified"} if "email" in claims and claims["email"] != more.get("email") else set()
    return {**{name: value for name, value in more.items() if name not in hidden}, **claims}


def _is_safe(url: str) -> bool:
    """Return whether an address is of https, or stays on this machine."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HERE))


def _is_own_path(path: str) -> bool:
    is_plain = path.isascii() and path.isprintable() and "\\" not in path
    return is_plain and path.startswith("/") and not path.startswith("//") and len(path) <= 1024


def _seconds(value: object, default: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(max(float(value), 1.0), 3600.0) if is_number else default  # type: ignore[arg-type]  # it is one


def _brief(said: Mapping[str, Any]) -> str:
    words = (str(said.get(name, "")) for name in ("error", "error_description"))
    return errors.readable(": ".join(filter(None, words))[:200] or "nothing")


def _failed(why: str) -> errors.Unauthenticated:
    return errors.Unauthenticated(f"the login failed: {why}", reason="LoginFailed", hint="begin it again")


def _broken(why: str) -> errors.ProtocolError:
    message = f"the identity provider cannot be used: {why}"
    return errors.ProtocolError(message, reason="ProviderBroken", hint="setting oidc.issuer names it")
