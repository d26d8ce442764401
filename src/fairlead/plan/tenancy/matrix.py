"""Declares what a test of a tenancy's network found: who tried to reach what, and what happened. Pure."""

from __future__ import annotations

import msgspec


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One connection that was tried."""

    source: str
    target: str
    family: str
    """`IPv4` or `IPv6`."""
    expected: bool
    """Whether it is to be reached."""
    reached: bool

    @property
    def is_breach(self) -> bool:
        """Say whether something was reached that must not be."""
        return self.reached and not self.expected

    @property
    def is_fault(self) -> bool:
        """Say whether something was not reached that is allowed."""
        return self.expected and not self.reached


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was tried for one tenancy."""

    tenancy: str
    attempts: tuple[Attempt, ...] = ()
    problem: str = ""
    """Why nothing was tried, or not everything; empty: everything was."""
    left_out: tuple[str, ...] = ()
    """What else could not be tried, and why, a sentence each; the verdict is about the rest."""
    is_isolated: bool = False
    """Whether packets were tried and every one that must be refused was."""
    works: bool = False
    """Whether everything that is allowed was reached."""


def judge(tenancy: str, attempts: tuple[Attempt, ...], problem: str = "", *, left_out: tuple[str, ...] = ()) -> Matrix:
    """Return the matrix with its verdict; where nothing was tried that must be refused, isolation is not proved."""
    refused = [one for one in attempts if not one.expected]
    return Matrix(
        tenancy=tenancy,
        attempts=attempts,
        problem=problem,
        left_out=left_out,
        is_isolated=not problem and bool(refused) and not any(one.is_breach for one in attempts),
        works=not problem and not any(one.is_fault for one in attempts),
    )
