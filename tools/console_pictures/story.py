"""Fills a service on simulated GPUs with the same story each time: what the pictures show."""

from __future__ import annotations

import contextlib
import datetime as dt
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "system"))

import home as homes

IMAGE: Final = "localhost/team/pytorch:2.5"
"""A busybox under a name that people know from their own: nothing of it is PyTorch's."""
_TEMPLATES: Final = """[notebook]
about = "a page from busybox, in place of JupyterLab"
image = "{image}"
command = ["sh", "-c", "mkdir /tmp/page; echo a notebook >/tmp/page/index.html; exec httpd -f -p 8000 -h /tmp/page"]
home = "/home/me"
port = 8000
"""
_EPOCHS: Final = "for i in $(seq 1 24); do echo epoch $i: loss 0.$((90 - i)); done; exec sleep 100000"
_CLAIM: Final = """apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: two-gpus, namespace: default}
spec:
  devices:
    requests:
    - name: gpus
      exactly: {deviceClassName: gpu.nvidia.com, count: 2}
"""
_KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBmDJ0wMQsBGqLzi0Kq5UCBhtUkqIqLUhQwRgbTrVnAa ann@laptop\n"
_SETTINGS: Final = {
    "FAIRLEAD_API_LISTEN": "127.0.0.1:0",
    "FAIRLEAD_LEASE_LEDGER": "on",
    "FAIRLEAD_METERING_PRICES": "H100=2.50,*=0.50",
    "FAIRLEAD_METERING_CURRENCY": "EUR",
}


@dataclass(frozen=True)
class Told:
    """A service with the story in it."""

    address: str
    """Of the console, without a slash at its end."""
    keys: Mapping[str, str]
    """API keys by account."""
    places: Mapping[str, str]
    """What stands in a page's address for `{gpu}` and the like."""


@contextlib.contextmanager
def told() -> Iterator[Told]:
    """Give the service, and leave nothing of it."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        homes.make_image(Path(folder), IMAGE)
        templates = Path(folder, "templates.toml")
        templates.write_text(_TEMPLATES.format(image=IMAGE))
        try:
            with homes.machine_of_tenancies(IMAGE, **_SETTINGS, FAIRLEAD_SESSION_TEMPLATES=str(templates)) as one:
                one.extra["HOME"] = str(one.folder)
                one.up()
                yield _tell(one, Path(folder))
        finally:
            subprocess.run(("podman", "rmi", "-f", IMAGE), check=False, capture_output=True)


def _tell(one: homes.Home, folder: Path) -> Told:
    _until_healthy(one)
    _people(one, folder)
    _work(one)
    _things(one, folder)
    _until_healthy(one)
    monday = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=7 - dt.datetime.now(dt.UTC).weekday())
    for day, hour, count, tenancy, name in ((0, 9, 2, "vision", "course"), (2, 13, 4, "speech", "deadline")):
        begin = f"{monday + dt.timedelta(days=day)} {hour}:00"
        one.ok(
            "reserve", "-g", str(count), "--from", begin, "--for", "3h", "--zone", "UTC", "-T", tenancy, "--name", name
        )
    spaces = {item["name"]: item["namespace"] for item in one.ask("/v1/tenancies")["items"]}
    address = one.ask("/v1/status")["address"]
    keys = {
        name: one.ok("key", "create", "--user", name, "--note", "laptop").out.strip() for name in ("op", "ann", "eve")
    }
    return Told(
        address=f"{address}/console",
        keys=keys,
        places={
            "gpu": one.ask("/v1/gpus")["gpus"][0]["gpu"]["uuid"],
            "vision": spaces["vision"],
            "webhook": one.ask("/v1/webhooks")["items"][0]["id"],
            "notice": _notice(address, keys["ann"]),
            "week": str(monday),
        },
    )


def _notice(address: str, key: str) -> str:
    """Have somebody be told of their containers in a chat; returns the notice's id. A notice is its maker's own."""
    wanted = {"url": "https://chat.example.com/hooks/ann", "format": "slack", "events": ["container.failed"]}
    with httpx.Client(verify=False, timeout=30) as client:  # noqa: S501 - on loopback, by a certificate of its own
        answer = client.post(f"{address}/v1/notices", json=wanted, headers={"Authorization": f"Bearer {key}"})
        answer.raise_for_status()
        kept = client.get(f"{address}/v1/notices", headers={"Authorization": f"Bearer {key}"}).raise_for_status()
    return str(kept.json()["items"][0]["id"])


def _until_healthy(one: homes.Home) -> None:
    """Wait until no other service of this machine holds what simulated GPUs share: their device numbers."""
    one.until(
        lambda: all(each["health"] == "Healthy" for each in one.ask("/v1/gpus")["gpus"]),
        what="every GPU is healthy: does another Fairlead run containers on this machine?",
        timeout_s=180,
    )


def _people(one: homes.Home, folder: Path) -> None:
    one.ok(
        "tenancy",
        "create",
        "vision",
        "--display-name",
        "Computer vision",
        "--gpus",
        "4",
        "--quota",
        "pods=20",
        "--network",
        "none",
    )
    one.ok("tenancy", "create", "speech", "--gpus", "4", "--network", "none")
    one.ok("tenancy", "create", "robotics", "--network", "none")
    one.ok("user", "create", "op", "--administrator")
    for name, role, tenancy in (
        ("ann", "owner", "vision"),
        ("ben", "developer", "vision"),
        ("eve", "owner", "robotics"),
    ):
        one.ok("user", "create", name)
        one.ok("user", "grant", name, role, "-T", tenancy)
    public = folder / "ann.pub"
    public.write_text(_KEY)
    one.ok("ssh-key", "add", "--user", "ann", str(public))


def _work(one: homes.Home) -> None:
    one.ok("volume", "create", "datasets", "-T", "vision")
    one.ok("volume", "create", "checkpoints")
    one.start(
        "train",
        "-g",
        "2",
        "-T",
        "vision",
        "-v",
        "datasets:/data",
        "-e",
        "SEED=7",
        "-l",
        "project=segmentation",
        command=("sh", "-c", _EPOCHS),
    )
    one.start("notebook-ann", "-g", "1", "-T", "vision", command=("sh", "-c", "echo ready; exec sleep 100000"))
    one.start("transcribe", "-g", "2", "-T", "speech", command=("sh", "-c", "echo ready; exec sleep 100000"))
    one.ok(
        "run",
        "-d",
        "--name",
        "broken",
        IMAGE,
        "--",
        "sh",
        "-c",
        "echo reading /data/train.bin; echo no such file >&2; exit 3",
    )
    one.until_state("broken", "failed")
    one.ok("run", "-d", "--name", "evaluate", IMAGE, "--", "sh", "-c", "echo accuracy 0.91")
    one.until_state("evaluate", "succeeded")
    one.ok("run", "-d", "--name", "sweep", "-g", "6", IMAGE, "--", "true")
    one.until_state("sweep", "pending")


def _things(one: homes.Home, folder: Path) -> None:
    one.ok("queue", "create", "research", "--weight", "2", "--limit", "6")
    one.ok("queue", "create", "teaching", "--parent", "research", "--weight", "1")
    one.ok("quota", "set", "-n", "default", "--gpus", "6")
    one.ok("budget", "set", "vision", "500")
    one.ok("budget", "set", "speech", "800", "--action", "refuse")
    one.ok("webhook", "create", "https://chat.example.com/hooks/gpus", "-T", "vision", "--event", "container.failed")
    value = folder / "token"
    value.write_text("not a secret")
    one.ok("secrets", "create", "registry-token", str(value))
    one.ok("secrets", "create", "wandb", str(value), "-T", "vision")
    claim = folder / "claim.yaml"
    claim.write_text(_CLAIM)
    one.ok("apply", "-f", str(claim))
