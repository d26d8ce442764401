"""Opens everything that is kept of accounts, over one database."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy.ext import asyncio as sqla

from fairlead.serve.accounts import auditstore, port, sessionstore, sshkeystore, store
from fairlead.serve.accounts.oidc.identitystore import StoredIdentities
from fairlead.serve.accounts.oidc.port import Identities, Logins
from fairlead.serve.accounts.sessions import Lifetime
from fairlead.serve.database.unchanged import Commits, Unchanged
from fairlead.serve.metering.budgetstore import StoredBudgets
from fairlead.serve.webhooks.store import StoredWebhooks


def open_accounts(
    database: sqla.AsyncEngine,
    *,
    now: Callable[[], float] = time.time,
    lifetime: Lifetime | None = None,
    logins: Callable[[Identities], Logins] | None = None,
    hooks: StoredWebhooks | None = None,
) -> port.Accounts:
    """Return the accounts of a database.

    Args: now: Unix seconds.   lifetime: of browsers' sessions.   logins: by an identity provider.
          hooks: of the same database; None: they go to public addresses, and no e-mail is sent.
    """
    commits = Commits(database)
    hooks = hooks or StoredWebhooks(database=database, now=now)
    return port.Accounts(
        people=store.StoredPeople(database=database, now=now),
        keys=store.StoredKeys(database=database, now=now, known=Unchanged(commits)),
        ssh_keys=sshkeystore.StoredSSHKeys(database=database, now=now),
        sessions=sessionstore.StoredSessions(
            database=database, now=now, lifetime=lifetime or Lifetime(), known=Unchanged(commits)
        ),
        audit=auditstore.StoredAudit(database=database, now=now),
        webhooks=hooks,
        budgets=StoredBudgets(database=database, tell=hooks.tell, now=now),
        logins=logins(StoredIdentities(database=database, now=now)) if logins else None,
    )
