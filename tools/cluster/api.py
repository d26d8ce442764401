"""A small client of the API server, for bringing a cluster up and for tests: JSON in, JSON out, and one way to wait.

Not the product's client: tests judge with it what the product did, so it shares no code with it.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx

from fairlead import errors

Object = dict[str, Any]
_GONE: Final = 410
T = TypeVar("T")


class API:
    """A connection as the cluster's administrator.

    Args:    server: URL.   certificates: folder with `ca.crt` and the pair `user`.
    """

    def __init__(self, server: str, certificates: Path, *, user: str = "admin") -> None:
        context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        context.load_cert_chain(certificates / f"{user}.crt", certificates / f"{user}.key")
        self._client = httpx.Client(base_url=server, verify=context, timeout=30, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def is_ready(self) -> bool:
        """Whether the API server answers and calls itself ready."""
        try:
            return self._client.get("/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def get(self, path: str, **query: str) -> Object:
        """Return an object or a list; raises NotFound, Denied, Conflict, RequestError or Unavailable."""
        return self._call("GET", path, query=query)

    def create(self, path: str, content: Mapping[str, Any]) -> Object:
        """Create an object in a collection."""
        return self._call("POST", path, content=content)

    def post_text(self, path: str, text: str) -> Object:
        """Create an object that is written as JSON already, byte by byte."""
        response = self._client.post(path, content=text.encode(), headers={"Content-Type": "application/json"})
        _checked(response)
        found: Object = response.json()
        return found

    def delete(self, path: str, *, grace_s: int | None = None) -> Object:
        """Delete an object or a collection; `grace_s` None leaves it to the object."""
        return self._call("DELETE", path, query={} if grace_s is None else {"gracePeriodSeconds": str(grace_s)})

    def patch(self, path: str, content: Mapping[str, Any]) -> Object:
        """Merge content into an object."""
        return self._call("PATCH", path, content=content, kind="application/merge-patch+json")

    def text(self, path: str, **query: str) -> str:
        """Return what a path says as text: logs, metrics."""
        response = self._client.get(path, params=query)
        _checked(response)
        return response.text

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """Yield the lines of a path as they come; ends with the connection, or after 30 s of silence."""
        with self._client.stream("GET", path, params=query) as response:
            if response.is_error:
                response.read()
            _checked(response)
            yield from response.iter_lines()

    def _call(
        self,
        method: str,
        path: str,
        *,
        content: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        # Compact, as kubectl and Go clients write: an API server never again takes a claim with blanks in its opaque
        # parameters from a client that writes JSON, since the parameters differ by the blanks.
        body = None if content is None else json.dumps(content, separators=(",", ":")).encode()
        try:
            response = self._client.request(method, path, params=query, content=body, headers={"Content-Type": kind})
        except httpx.TransportError as error:
            message = f"the api server does not answer: {error}"
            raise errors.Unavailable(
                message, reason="NoAPIServer", hint="its log lies in the cluster's folder"
            ) from error
        _checked(response)
        found: Object = response.json()
        return found

    def until(self, path: str, check: Callable[[list[Object]], T | None], *, what: str, timeout_s: float = 60) -> T:
        """Watch a collection until `check` of all its objects says something, and return that.

        Args:    check: asked at the start and after every change; None: not yet.   what: for the error.
        Raises:  Unavailable: not within the time; the message shows what was there.
        """
        deadline = time.monotonic() + timeout_s
        items: list[Object] = []
        while time.monotonic() < deadline:
            for items in self._states(path, deadline):
                found = check(items)
                if found is not None:
                    return found
                if time.monotonic() >= deadline:  # each change begins the stream's own time limit anew
                    break
        message = f"not within {timeout_s:.0f} s: {what}; last seen: {json.dumps(_short(items))[:6000]}"
        raise errors.Unavailable(message, reason="TimedOut", hint="the components' logs lie in the cluster's folder")

    def _states(self, path: str, deadline: float) -> Iterator[list[Object]]:
        """Yield the collection as it is and after every change, until the watch ends."""
        listed = self.get(path)
        items = {_key(item): item for item in listed["items"]}
        yield list(items.values())
        query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
        limit = httpx.Timeout(10, read=max(0.1, deadline - time.monotonic()))
        try:
            with self._client.stream("GET", path, params=query, timeout=limit) as response:
                if response.status_code == _GONE:
                    return
                for line in response.iter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    if event["type"] == "DELETED":
                        items.pop(_key(event["object"]), None)
                    else:
                        items[_key(event["object"])] = event["object"]
                    yield list(items.values())
        except httpx.TransportError:
            return  # the caller's deadline, or a server that restarts: list again


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _short(items: list[Object]) -> list[Object]:
    return [{"name": item["metadata"]["name"], "status": item.get("status", {})} for item in items]


def _checked(response: httpx.Response) -> None:
    if response.status_code < 400:
        return
    kinds: dict[int, type[errors.FairleadError]] = {403: errors.Denied, 404: errors.NotFound, 409: errors.Conflict}
    default = errors.Unavailable if response.status_code >= 500 or response.status_code == 429 else errors.RequestError
    kind = kinds.get(response.status_code, default)
    raise kind(f"{response.request.method} {response.request.url.path}: {response.text[:2000]}", reason="APIServerSaid")
