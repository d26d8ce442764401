"""Calls one service for Python programs: `with Client() as client: client.run("pytorch", gpus=2).logs(follow=True)`."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack

import msgspec

from fairlead import errors
from fairlead.client import answers, calls, place, record, runoptions, secret
from fairlead.client.container import Container, moment

_NAMES: Final = frozenset(runoptions.RunOptions.__annotations__)


class Client:
    """One service, and as whom.

    Without an address the service is the one that the command line talks to: FAIRLEAD_URL, the context of `fairlead
    login`, else this machine's own socket. It is connected to with the first request.

    Args:   url: `https://lab:8443`, or the path of a unix socket.   key: an API key for it.
            fingerprint: of the service's key, as `fairlead up` shows it; without one this machine's authorities
            vouch for its certificate.   context: where you are logged in, by name, in place of an address.
            tenancy, namespace: meant where a call names none; at most one of them.
            retries: how often a request that broke off or was refused for its rate is sent again.
            patience_s: how long a service that has answered before is waited for while it is restarted.
    Raises: Invalid: these do not go together; NotFound: there is no such context or tenancy.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        fingerprint: str | None = None,
        context: str | None = None,
        tenancy: str | None = None,
        namespace: str | None = None,
        retries: int = 3,
        patience_s: float = calls.PATIENCE_S,
    ) -> None:
        """Choose the service; it is connected to with the first request."""
        self.transport = place.carrier(url, key=key, fingerprint=fingerprint, context=context)
        self.calls = calls.Calls(self.transport, retries=retries, patience_s=patience_s)
        self._tenancy, self._namespace = tenancy, namespace
        if tenancy is not None and namespace is not None:
            raise _ambiguous(tenancy, namespace)

    @property
    def namespace(self) -> str:
        """The namespace meant where a call names none. Raises: NotFound: there is no such tenancy."""
        if self._namespace is None:
            self._namespace = "default" if self._tenancy is None else self._found(self._tenancy)
        return self._namespace

    def run(
        self,
        image: str,
        command: Sequence[str] = (),
        *,
        wait_s: float | None = None,
        **options: Unpack[runoptions.RunOptions],
    ) -> Container:
        """Run a container and return it at once; `logs(follow=True)` and `wait` come back to it.

        The request has a key of its own, so that one which is sent again is the same container.
        Args:   image: what to run.   command: in place of the image's own; a list of words, no shell.
                wait_s: return it once it has started, or will not, or as it is after so long; None: at once.
                options: `gpus=2`, `name="train"`, `env={"A": "b"}`, `memory="64Gi"`, and the others of `RunOptions`.
        Raises: TypeError: an option that there is not; Denied: a quota or a rule; Conflict: the name is taken.
        """
        headers = {calls.IDEMPOTENCY_KEY: uuid.uuid4().hex}
        made = self.calls.call(
            "POST",
            "/v1/containers",
            answers.ContainerView,
            params={"wait": wait_s},
            body=self._request(image, command, options),
            headers=headers,
            timeout_s=calls.TIMEOUT_S + (wait_s or 0),
        )
        return Container(self.calls, made)

    def dry_run(
        self, image: str, command: Sequence[str] = (), **options: Unpack[runoptions.RunOptions]
    ) -> answers.ContainerView:
        """Check everything that `run` would, run nothing, and return what would be: `.waiting` says why it would wait.

        Raises: as `run`.
        """
        params, body = {"dry_run": "true"}, self._request(image, command, options)
        return self.calls.call("POST", "/v1/containers", answers.ContainerView, params=params, body=body)

    def _request(self, image: str, command: Sequence[str], options: runoptions.RunOptions) -> dict[str, Any]:
        if unknown := sorted(set(options) - _NAMES):
            message = f"run() has no option {', '.join(unknown)}; there are {', '.join(sorted(_NAMES))}"
            raise TypeError(message)
        if isinstance(command, str):
            message = f'the command is a list of words, ["sh", "-c", {command!r}] for one'
            raise TypeError(message)
        for option, given in (("env", options.get("env")), ("labels", options.get("labels"))):
            _check_texts(option, given or {})
        body: dict[str, Any] = {"image": image, "args": list(command), **options}
        if not body.get("tenancy") and not body.get("namespace"):
            body["namespace"] = self.namespace
        return body

    def container(self, name: str, *, namespace: str | None = None) -> Container:
        """Return a container by its name. Raises: NotFound."""
        params = {"namespace": namespace or self.namespace}
        found = self.calls.call("GET", calls.container_path(name), answers.ContainerView, params=params)
        return Container(self.calls, found)

    def containers(
        self, *, ended: bool = False, labels: Mapping[str, str] | None = None, namespace: str | None = None
    ) -> record.Listing[Container]:
        """Return the containers that you may see.

        Args:   ended: those that have ended as well.   labels: only those that have all of these.
                namespace: only those in it; None: the client's tenancy or namespace, else all.
        """
        wanted = namespace or (self.namespace if self._tenancy or self._namespace else None)
        params = {
            "all": str(ended).lower(),
            "label": [f"{name}={value}" for name, value in (labels or {}).items()],
            "namespace": wanted,
        }
        found = self.calls.call("GET", "/v1/containers", answers.ContainerList, params=params).items
        columns = ("name", "state", "image", "gpus", "view.node", "view.message")
        return record.Listing((Container(self.calls, one) for one in found), columns=columns)

    def gpus(self) -> record.Listing[answers.GPUView]:
        """Return the GPUs, what they are and who holds them."""
        found = self.calls.call("GET", "/v1/gpus", answers.GPUListing).gpus
        return record.Listing(found, columns=("node", "gpu.index", "gpu.name", "health", "lease", "gpu.uuid"))

    def nodes(self) -> record.Listing[answers.NodeView]:
        """Return the nodes, what they have and what is taken."""
        found = self.calls.call("GET", "/v1/nodes", answers.NodeList).items
        return record.Listing(found, columns=("name", "state", "reason", "allocatable", "used"))

    def images(self) -> record.Listing[answers.ImageView]:
        """Return the images that containers can be started from without a registry."""
        found = self.calls.call("GET", "/v1/images", answers.ImageList).items
        return record.Listing(found, columns=("names", "size_bytes", "created_at"))

    def volumes(self, *, namespace: str | None = None) -> record.Listing[answers.VolumeView]:
        """Return the named volumes."""
        params = {"namespace": namespace}
        found = self.calls.call("GET", "/v1/volumes", answers.VolumeList, params=params).items
        return record.Listing(found, columns=("namespace", "name", "state", "used_by"))

    def claims(self, *, namespace: str | None = None) -> record.Listing[answers.ClaimView]:
        """Return the claims of devices, with what each holds and why it waits."""
        params = {"namespace": namespace}
        found = self.calls.call("GET", "/v1/claims", answers.ClaimList, params=params).items
        return record.Listing(found, columns=("namespace", "name", "state", "devices", "used_by"))

    def secrets(self, *, namespace: str | None = None) -> record.Listing[answers.SecretView]:
        """Return the secrets that containers may be given: names, keys and digests, never a value."""
        found = self.calls.call("GET", "/v1/secrets", answers.SecretList, params={"namespace": namespace}).items
        return record.Listing(found, columns=("namespace", "name", "digests", "used_by"))

    def set_secret(
        self, name: str, values: Mapping[str, str | bytes] | str | bytes, *, namespace: str | None = None
    ) -> answers.SecretView:
        """Keep a secret, in place of one of that name: `run(…, secrets=[{"name": name, "env": "TOKEN"}])` gives it.

        Args:   values: by key; text or bytes alone has the key `value`.
        Raises: Invalid: its name, or what it holds; Denied: a quota or a role.
        """
        given = {"value": values} if isinstance(values, str | bytes) else values
        data = {key: value.encode() if isinstance(value, str) else value for key, value in given.items()}
        return secret.replace(self.calls, name, namespace or self.namespace, data, answers.SecretView)

    def delete_secret(self, name: str, *, namespace: str | None = None) -> None:
        """Delete a secret; containers that run keep what they were given. Raises: NotFound."""
        self.calls.call("DELETE", secret.path(name), type(None), params={"namespace": namespace or self.namespace})

    def gpu_metrics(
        self,
        gpu: str | int,
        since: str | dt.datetime | None = None,
        *,
        until: str | dt.datetime | None = None,
        step_s: int | None = None,
    ) -> answers.MetricsView:
        """Return what a GPU did over time, as `Container.metrics`; a tenant gets it while they held it.

        Args:   gpu: index, or UUID of a GPU or MIG device.   Raises: NotFound (`GPUUnknown`, `HistoryAbsent`).
        """
        params = {"since": moment(since), "until": moment(until), "step": step_s}
        path = f"{calls.item_path('/v1/gpus', str(gpu))}/metrics"
        return self.calls.call("GET", path, answers.MetricsView, params=params)

    def reservations(self, *, namespace: str | None = None) -> record.Listing[answers.ReservationView]:
        """Return the reservations of GPUs; of others' you hear no more than from the API."""
        params = {"namespace": namespace}
        found = self.calls.call("GET", "/v1/reservations", answers.ReservationList, params=params).items
        return record.Listing(found, columns=("namespace", "name", "gpus", "state", "start", "end", "repeat"))

    def reserve(
        self,
        gpus: int,
        start: str | dt.datetime,
        length: dt.timedelta | float,
        *,
        name: str = "",
        repeat: str = "",
        until: str = "",
        zone: str = "",
        namespace: str | None = None,
    ) -> answers.ReservationView:
        """Reserve GPUs for a time to come.

        Args:   start: "tomorrow 9:00", or a moment.   length: of each window, or seconds.
                name: "": one is made up.   repeat: daily, weekdays or weekly; "": once.
                until: last day, "2026-12-31".   zone: of `start`; "": the service's.
        Raises: Insufficient: others have the GPUs then; Denied: more than a tenant may; Invalid.
        """
        begin = start if isinstance(start, str) else start.astimezone(dt.UTC).isoformat()
        seconds = int(length.total_seconds() if isinstance(length, dt.timedelta) else length)
        body = {
            **{"gpus": gpus, "from": begin, "duration_seconds": seconds, "repeat": repeat, "until": until},
            **{"name": name, "zone": zone, "namespace": namespace or self.namespace},
        }
        return self.calls.call("POST", "/v1/reservations", answers.ReservationView, body=body)

    def delete_reservation(self, name: str, *, namespace: str | None = None) -> None:
        """Give reserved GPUs back; containers that run go on. Raises: NotFound."""
        path = calls.item_path("/v1/reservations", name)
        self.calls.call("DELETE", path, type(None), params={"namespace": namespace or self.namespace})

    def notices(self) -> record.Listing[answers.WebhookView]:
        """Return what you are told, and where; without secrets."""
        found = self.calls.call("GET", "/v1/notices", answers.WebhookList).items
        return record.Listing(found, columns=("id", "format", "tenancy", "reach", "is_confirmed", "url"))

    def add_notice(
        self, url: str, *, form: str = "fairlead", token: str = "", tenancy: str = "", events: Sequence[str] = ()
    ) -> answers.WebhookView:
        """Be told of your containers, or of a tenancy's, and have its id.

        Args:   url: https://HOST/PATH, or mailto:NAME@HOST.   form: fairlead, slack, matrix or email.
                token: of a Matrix account.   events: as "container.failed"; none: those for people.
        Raises: Invalid, Denied: what is not sent to; Conflict: you have as many as there may be.
        """
        body = {"url": url, "format": form, "token": token, "tenancy": tenancy, "events": list(events)}
        return self.calls.call("POST", "/v1/notices", answers.NewWebhook, body=body).webhook

    def confirm_notice(self, name: str, code: str) -> None:
        """Confirm an e-mail address by the code that was sent there. Raises: Denied (`CodeWrong`); NotFound."""
        path = f"{calls.item_path('/v1/notices', name)}:confirm"
        self.calls.call("POST", path, answers.WebhookView, body={"code": code})

    def remove_notice(self, name: str) -> None:
        """Be told no more. Raises: NotFound."""
        self.calls.call("DELETE", calls.item_path("/v1/notices", name), type(None))

    def quotas(self, *, namespace: str | None = None) -> record.Listing[answers.QuotaView]:
        """Return how much the containers of each namespace may ask for together, and do."""
        params = {"namespace": namespace}
        found = self.calls.call("GET", "/v1/quotas", answers.QuotaList, params=params).items
        return record.Listing(found, columns=("namespace", "name", "used", "hard"))

    def tenancies(self) -> record.Listing[answers.TenancyView]:
        """Return the tenancies that you are a member of, or all."""
        found = self.calls.call("GET", "/v1/tenancies", answers.TenancyList).items
        return record.Listing(found, columns=("name", "phase", "namespace", "problem"))

    def usage(
        self,
        *,
        since: str | dt.datetime | None = None,
        until: str | dt.datetime | None = None,
        group_by: Sequence[str] = ("tenancy",),
    ) -> answers.UsageReport:
        """Say who held GPUs for how long, and what that costs.

        Args:   since, until: RFC 3339 times; None: the service's own period.   group_by: any of tenancy, namespace,
                user, model, gpu, node, lease, day.
        """
        params = {"since": moment(since), "until": moment(until), "group_by": ",".join(group_by)}
        return self.calls.call("GET", "/v1/usage", answers.UsageReport, params=params)

    def events(self, *, follow: bool = False) -> Iterator[answers.EventView]:
        """Yield what happened, oldest first; with `follow` what happens from then on as well, without end."""
        if not follow:
            yield from self.calls.call("GET", "/v1/events", answers.EventList).items
            return
        for line in self.calls.followed("/v1/events", params={"follow": "true"}):
            yield msgspec.convert(line, answers.EventView)

    def status(self) -> answers.Status:
        """Say how the service is."""
        return self.calls.call("GET", "/v1/status", answers.Status)

    def whoami(self) -> answers.Self:
        """Say whose key this is, and what roles it has."""
        return self.calls.call("GET", "/v1/self", answers.Self)

    def get(self, path: str, /, **params: Any) -> Any:
        """Return what a path of the API answers, as plain JSON values: what has no method here."""
        return self.calls.get(path, params=params)

    def close(self) -> None:
        """End what is open: followed logs, sessions; idempotent."""
        self.calls.close()

    def __enter__(self) -> Self:
        """Use it for a block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Name the service, never the key."""
        return f"<fairlead.Client of {self.calls.address}>"

    def _found(self, tenancy: str) -> str:
        path = calls.item_path("/v1/tenancies", tenancy)
        return self.calls.call("GET", path, answers.TenancyView).namespace


def _ambiguous(tenancy: str, namespace: str) -> errors.Invalid:
    message = f'tenancy "{tenancy}" and namespace "{namespace}" are given: a tenancy has a namespace of its own'
    return errors.Invalid(message, reason="NamespaceAmbiguous", hint="leave the namespace out")


def _check_texts(option: str, given: Mapping[str, Any]) -> None:
    """Refuse a value that is not text, by its key. Raises: TypeError."""
    for key, value in given.items():
        if not isinstance(value, str):
            message = f"{option}[{key!r}] is {value!r}, not text: {option}={{{key!r}: {str(value)!r}}}"
            raise TypeError(message)
