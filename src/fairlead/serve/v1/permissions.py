"""Names what each route does, and has the table of roles judge it before the route runs.

A request with a key is judged; one of the unix socket is not, since `dependencies` narrows the machine to its caller.
A route that is not in `ACTIONS` is refused to every key, an administrator's too: who adds a route says who may use it.
"""

from __future__ import annotations

import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from litestar import connection, exceptions, handlers

from fairlead import errors
from fairlead.serve.accounts.recording import Recording
from fairlead.serve.accounts.roles import TABLE, Action, Principal
from fairlead.serve.api import etag, failure

PRINCIPAL: Final = "principal"
"""Of the scope's state: who holds the key that came with the request. The TLS door puts it there."""
REFUSAL: Final = failure.REFUSAL
"""Key in the scope's state: why a WebSocket was refused; the listener answers with it."""

RECORDING: Final = "recording"
"""Of the scope's state: the request on its way into the audit log. The TLS door puts it there."""
OWE: Final = "owe"
"""Key in the scope's state: charges one request as several to the key's rate limit. The TLS listener sets it."""
RENEW: Final = "renew"
"""Key in the scope's state: returns who holds the key or session at a later time. The TLS listener sets it."""
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

ACTIONS: Final[Mapping[str, Action]] = {
    "document": Action.SERVICE_READ,
    "healthz": Action.SERVICE_READ,
    "readyz": Action.SERVICE_READ,
    "show_status": Action.SERVICE_READ,
    "list_gpus": Action.SERVICE_READ,
    "list_capacity": Action.SERVICE_READ,
    "list_gpu_metrics": Action.CONTAINER_READ,
    "read_gpu_metrics": Action.CONTAINER_READ,
    "read_container_metrics": Action.CONTAINER_READ,
    "list_images": Action.SERVICE_READ,
    "show_topology": Action.MACHINE_READ,
    "list_nodes": Action.MACHINE_READ,
    "list_templates": Action.SERVICE_READ,
    "create_container": Action.CONTAINER_RUN,
    "create_pods": Action.CONTAINER_RUN,
    "list_containers": Action.CONTAINER_READ,
    "show_container": Action.CONTAINER_READ,
    "delete_container": Action.CONTAINER_RUN,
    "stop_container": Action.CONTAINER_RUN,
    "wait_container": Action.CONTAINER_READ,
    "read_logs": Action.CONTAINER_READ,
    "list_container_events": Action.CONTAINER_READ,
    "trace_container": Action.CONTAINER_READ,
    "explain_container": Action.CONTAINER_READ,
    "signal_container": Action.CONTAINER_RUN,
    "restart_container": Action.CONTAINER_RUN,
    "list_processes": Action.CONTAINER_READ,
    "read_usage": Action.CONTAINER_READ,
    "exec_in_container": Action.CONTAINER_ENTER,
    "attach_to_container": Action.CONTAINER_ENTER,
    "copy_files": Action.CONTAINER_ENTER,
    "carry_sftp": Action.CONTAINER_ENTER,
    "forward_port": Action.CONTAINER_ENTER,
    "open_port": Action.CONTAINER_ENTER,
    "debug_container": Action.CONTAINER_ENTER,
    "set_status": Action.CONTAINER_RUN,
    "resize_container": Action.CONTAINER_RUN,
    "rename_container": Action.CONTAINER_RUN,
    "attach_device": Action.MACHINE_WRITE,
    "detach_device": Action.MACHINE_WRITE,
    "inject_fault": Action.MACHINE_WRITE,
    "end_neighbours": Action.MACHINE_WRITE,
    "list_events": Action.CONTAINER_READ,
    "import_image": Action.MACHINE_WRITE,
    "build_image": Action.MACHINE_WRITE,
    "remove_image": Action.MACHINE_WRITE,
    "pull_image": Action.MACHINE_WRITE,
    "tag_image": Action.MACHINE_WRITE,
    "prune_images": Action.MACHINE_WRITE,
    "carry_archive": Action.MACHINE_WRITE,
    "apply_quotas": Action.MACHINE_WRITE,
    "list_quotas": Action.TENANCY_READ,
    "show_quota": Action.TENANCY_READ,
    "delete_quota": Action.MACHINE_WRITE,
    "list_volumes": Action.VOLUME_READ,
    "show_volume": Action.VOLUME_READ,
    "create_volume": Action.VOLUME_WRITE,
    "delete_volume": Action.VOLUME_WRITE,
    "prune_volumes": Action.VOLUME_WRITE,
    "list_claims": Action.CONTAINER_READ,
    "show_claim": Action.CONTAINER_READ,
    "delete_claim": Action.CONTAINER_RUN,
    "list_secrets": Action.SECRET_READ,
    "show_secret": Action.SECRET_READ,
    "create_secret": Action.SECRET_WRITE,
    "replace_secret": Action.SECRET_WRITE,
    "delete_secret": Action.SECRET_WRITE,
    "apply_objects": Action.CONTAINER_RUN,
    "delete_objects": Action.CONTAINER_RUN,
    "list_objects": Action.CONTAINER_READ,
    "delete_object": Action.CONTAINER_RUN,
    "scale_object": Action.CONTAINER_RUN,
    "restart_object": Action.CONTAINER_RUN,
    "undo_object": Action.CONTAINER_RUN,
    "pause_object": Action.CONTAINER_RUN,
    "resume_object": Action.CONTAINER_RUN,
    "set_queue": Action.MACHINE_WRITE,
    "list_queues": Action.MACHINE_READ,
    "show_queue": Action.MACHINE_READ,
    "delete_queue": Action.MACHINE_WRITE,
    "create_reservation": Action.CONTAINER_RUN,
    "list_reservations": Action.CONTAINER_READ,
    "show_reservation": Action.CONTAINER_READ,
    "delete_reservation": Action.CONTAINER_RUN,
    "export_reservations": Action.CONTAINER_READ,
    "create_tenancy": Action.MACHINE_WRITE,
    "change_tenancy": Action.MACHINE_WRITE,
    "list_tenancies": Action.TENANCY_READ,
    "show_tenancy": Action.TENANCY_READ,
    "wait_tenancy": Action.TENANCY_READ,
    "suspend_tenancy": Action.MACHINE_WRITE,
    "resume_tenancy": Action.MACHINE_WRITE,
    "try_tenancy": Action.MACHINE_WRITE,
    "add_registry": Action.MACHINE_WRITE,
    "drop_registry": Action.MACHINE_WRITE,
    "delete_tenancy": Action.MACHINE_WRITE,
    "set_budget": Action.MACHINE_WRITE,
    "show_budget": Action.TENANCY_READ,
    "delete_budget": Action.MACHINE_WRITE,
    "list_budgets": Action.TENANCY_READ,
    "show_usage": Action.TENANCY_READ,
    "check_usage": Action.MACHINE_READ,
    "export_usage": Action.TENANCY_READ,
    "list_members": Action.MEMBER_READ,
    "show_member": Action.MEMBER_READ,
    "grant_role": Action.MEMBER_WRITE,
    "revoke_role": Action.MEMBER_WRITE,
    "create_user": Action.ACCOUNT_WRITE,
    "list_users": Action.ACCOUNT_WRITE,
    "show_user": Action.ACCOUNT_WRITE,
    "delete_user": Action.ACCOUNT_WRITE,
    "show_self": Action.SERVICE_READ,
    "create_key": Action.KEY_OWN,
    "list_keys": Action.KEY_OWN,
    "show_key": Action.KEY_OWN,
    "revoke_key": Action.KEY_OWN,
    "rotate_key": Action.KEY_OWN,
    "add_ssh_key": Action.KEY_OWN,
    "list_ssh_keys": Action.KEY_OWN,
    "show_ssh_key": Action.KEY_OWN,
    "remove_ssh_key": Action.KEY_OWN,
    "show_ssh_door": Action.SERVICE_READ,
    "list_leases": Action.MACHINE_READ,
    "quarantine_gpu": Action.MACHINE_WRITE,
    "release_gpu": Action.MACHINE_WRITE,
    "list_baselines": Action.MACHINE_READ,
    "approve_baseline": Action.MACHINE_WRITE,
    "forget_baseline": Action.MACHINE_WRITE,
    "list_audit": Action.AUDIT_READ,
    "create_webhook": Action.WEBHOOK_WRITE,
    "list_webhooks": Action.WEBHOOK_READ,
    "show_webhook": Action.WEBHOOK_READ,
    "delete_webhook": Action.WEBHOOK_WRITE,
    "try_webhook": Action.WEBHOOK_WRITE,
    "create_notice": Action.NOTICE_OWN,
    "list_notices": Action.NOTICE_OWN,
    "show_notice": Action.NOTICE_OWN,
    "delete_notice": Action.NOTICE_OWN,
    "try_notice": Action.NOTICE_OWN,
    "confirm_notice": Action.NOTICE_OWN,
    "open_session": Action.SESSION_OPEN,
    "show_session": Action.SESSION_OWN,
    "close_session": Action.SESSION_OWN,
    "begin_login": Action.SESSION_OPEN,
    "finish_login": Action.SESSION_OPEN,
    "begin_device": Action.SESSION_OPEN,
    "finish_device": Action.SESSION_OPEN,
}
"""By the name of the handler."""
OPEN: Final = frozenset(
    {
        ("POST", "/v1/session"),
        ("GET", "/v1/oidc/login"),
        ("GET", "/v1/oidc/callback"),
        ("POST", "/v1/oidc/device"),
        ("POST", "/v1/oidc/device:finish"),
    }
)
"""Methods and paths that pass the door without a key; their handlers' actions need no account."""


def is_open(scope: Any) -> bool:
    """Return whether a request passes the door without a key or a session."""
    return scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN


MINTS: Final = frozenset({"create_key", "rotate_key", "create_user", "add_ssh_key"})
"""Routes that make what outlives a session: none is served to a session alone."""
KEEPS_KEYS: Final = frozenset({"create_container", "create_pods"})
"""Routes that carry out a request once for its Idempotency-Key."""
TRIES: Final = frozenset({"create_container", "create_pods", "create_tenancy", "change_tenancy", "apply_objects"})
"""Routes that know `dry_run`."""


def principal_of(scope: Any) -> Principal | None:
    """Return who holds the request's key; None: it came by the unix socket."""
    found = (scope.get("state") or {}).get(PRINCIPAL)
    return found if isinstance(found, Principal) else None


def renewal_of(scope: Any) -> Callable[[], Awaitable[Principal]] | None:
    """Return what says who the sender is at a later time; None: the request came by the unix socket."""
    found: Callable[[], Awaitable[Principal]] | None = (scope.get("state") or {}).get(RENEW)
    return found


def recording_of(scope: Any) -> Recording | None:
    """Return the request on its way into the audit log; None: it came by the unix socket."""
    found = (scope.get("state") or {}).get(RECORDING)
    return found if isinstance(found, Recording) else None


def owe(scope: Any, count: int) -> None:
    """Count more requests against the key of this one; by the unix socket there are no limits."""
    if (counted := (scope.get("state") or {}).get(OWE)) is not None:
        counted(count)


def _changes(scope: Any) -> bool:
    """Return whether a request changes something: each WebSocket enters a container, or carries an archive."""
    return scope["type"] == "websocket" or scope["method"] not in _SAFE


def action_of(name: str) -> Action:
    """Return what a route does. Raises: Denied (`RouteUnjudged`)."""
    if (action := ACTIONS.get(name)) is None:
        message, hint = f'nothing says who may use the route "{name}"', "please report it: this is a bug in fairlead"
        raise errors.Denied(message, reason="RouteUnjudged", hint=hint)
    return action


def _refuse_key(scope: Any, route: str) -> None:
    """Refuse a promise that a route does not keep. Raises: RequestError (`IdempotencyKeyUnsupported`)."""
    is_post = scope["type"] == "http" and scope["method"] == "POST"
    if is_post and route not in KEEPS_KEYS and any(name == b"idempotency-key" for name, _ in scope["headers"]):
        message, hint = f'the route "{route}" keeps no Idempotency-Key', "leave it out: a repetition is a new request"
        raise errors.RequestError(message, reason="IdempotencyKeyUnsupported", hint=hint)


def _refuse_dry_run(scope: Any, route: str) -> None:
    """Refuse a dry run that would be carried out in earnest. Raises: RequestError (`DryRunUnsupported`)."""
    if scope["type"] != "http" or scope["method"] in _SAFE:
        return
    named = [
        name for name, _ in urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    ]
    tries = [name for name in named if re.sub("[-_]", "", name).lower() == "dryrun"]
    if tries and (route not in TRIES or tries != ["dry_run"]):
        known = f"{scope['method']} {scope['path']} knows no dry run" if route not in TRIES else "it is said once"
        message = f"{', '.join(tries)}: {known}; nothing was changed"
        hint = "leave it out" if route not in TRIES else "for example ?dry_run=true"
        raise errors.RequestError(message, reason="DryRunUnsupported", hint=hint)


async def judge(asked: connection.ASGIConnection[Any, Any, Any, Any], handler: handlers.BaseRouteHandler) -> None:
    """Refuse a request whose key may not use its route, or that is about another object than it names.

    Raises: Denied; Unavailable (`AuditUnavailable`); as `etag.check`.
    """
    if asked.scope.get("method") == "OPTIONS":
        raise exceptions.MethodNotAllowedException  # no page of another origin is answered, so none has to ask first
    _refuse_key(asked.scope, handler.handler_name)
    _refuse_dry_run(asked.scope, handler.handler_name)
    if (principal := principal_of(asked.scope)) is not None:
        await _judge_role(asked, handler, principal)
    await etag.check(asked, aside=RECORDING)


async def _judge_role(
    asked: connection.ASGIConnection[Any, Any, Any, Any], handler: handlers.BaseRouteHandler, principal: Principal
) -> None:
    """Refuse what a role does not allow, and have a request that changes something written first."""
    try:
        action = action_of(handler.handler_name)
        recording = recording_of(asked.scope)
        if recording is not None:
            recording.tell(action=action.value)
        principal.check(action)
        if handler.handler_name in MINTS:
            principal.check_minting(time.time())
        # Actions that need no account (logins) are recorded by their handler, once it knows the account.
        if recording is not None and _changes(asked.scope) and TABLE[action].needs_account:
            await recording.begin()
    except errors.FairleadError as error:
        asked.scope["state"][REFUSAL] = error
        raise
