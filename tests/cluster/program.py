"""`fairlead` as a user far from the nodes calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import home


@dataclass(frozen=True)
class Program:
    """`fairlead` as a user far from the nodes calls it: its own process, a kubeconfig and nothing else."""

    cluster: home.Cluster
    kubeconfig: Path

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.plain(f"--kubeconfig={self.kubeconfig}", *arguments, env=env)

    def plain(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        given = {"PATH": "/usr/bin:/bin", "HOME": "/none", "FAIRLEAD_STATE_RUN": "/none", **(env or {})}
        return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=60)

    def _command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        named = f"--kubeconfig={self.kubeconfig}"
        env = {"PATH": "/usr/bin:/bin", "HOME": "/none", "FAIRLEAD_STATE_RUN": "/none"}
        return [sys.executable, "-m", "fairlead.cli.main", named, *arguments], env

    def piped(self, *arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
        command, env = self._command(*arguments)
        return subprocess.run(command, env=env, input=data, capture_output=True, check=False, timeout=60)

    def open(self, *arguments: str, terminal: int) -> subprocess.Popen[bytes]:
        command, env = self._command(*arguments)
        return subprocess.Popen(command, env=env, stdin=terminal, stdout=terminal, stderr=terminal)

    def show(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """Return a table as rows by column title; columns are three blanks apart."""
        header, *lines = self.show(*arguments).splitlines()
        starts = [match.start() for match in re.finditer(r"(?:^|(?<=   ))\S", header)]
        ends: list[int | None] = [*starts[1:], None]
        cells = [[line[start:end].strip() for start, end in zip(starts, ends, strict=True)] for line in lines]
        titles = [header[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        return [dict(zip(titles, row, strict=True)) for row in cells]

    def findings(self) -> tuple[int, list[dict[str, str]]]:
        done = self.run("doctor", "-o", "json")
        assert done.stdout, done.stderr
        found: list[dict[str, str]] = json.loads(done.stdout)
        return done.returncode, found
