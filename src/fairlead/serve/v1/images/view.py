"""Declares requests about images, without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A root file system to make an image of."""

    path: Annotated[str, msgspec.Meta(description="folder or tar on the service's machine, absolute")]
    name: str
    command: tuple[str, ...] = ()


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder with a Containerfile."""

    context: Annotated[str, msgspec.Meta(description="folder on the service's machine, absolute")]
    name: str
    containerfile: Annotated[str, msgspec.Meta(description="absolute; empty: the one in the folder")] = ""
    args: Annotated[
        Mapping[str, str], msgspec.Meta(description="values of the Containerfile's ARGs; no secrets: `ps` shows them")
    ] = {}
    target: Annotated[str, msgspec.Meta(description="stage that is the image; empty: the last one")] = ""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image to fetch."""

    name: str


class TagRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more name for an image."""

    name: str
    new: str


class PrunedImages(msgspec.Struct, frozen=True, kw_only=True):
    """Images that were removed."""

    ids: tuple[str, ...]
