"""Fetches images for pods: a tenancy's with its own credentials, other pods' as the engine is set up.

An image that is on the machine because another tenancy fetched it with credentials is not given away for its name: it
is fetched again, one question to the registry where the tenancy may have it, and a refusal where it may not.
"""

from __future__ import annotations

import asyncio

from fairlead import errors
from fairlead.engine.port import IdentifiedImages
from fairlead.node.tenancy.registries import Fetched, Registries
from fairlead.wire.fairlead.tenancy import Tenancy


class Fetch:
    """Fetches images into an engine's store."""

    def __init__(self, images: IdentifiedImages, registries: Registries, fetched: Fetched) -> None:
        """Take the engine, the credentials, and the notes of what they fetched."""
        self._images, self._registries, self._fetched = images, registries, fetched

    async def fetch(self, image: str, tenancy: Tenancy | None) -> None:
        """Fetch an image, for a tenancy's pod or another one. Raises: as `port.Images.pull`."""
        is_noted = await self.must_ask(image, tenancy)
        uid, authfile = "", None
        if tenancy is not None:
            uid = tenancy.metadata.uid
            authfile = await asyncio.to_thread(self._registries.authfile, uid)
            is_noted = is_noted or await asyncio.to_thread(self._registries.has_login, uid, image)
        if is_noted:
            # Should we die before its id is known, each tenancy that asks for the name is asked for credentials.
            await asyncio.to_thread(self._fetched.begin, image)
        await self._images.pull(image, authfile=authfile)
        if is_noted and (identity := await self._images.identity(image)):
            await asyncio.to_thread(self._fetched.note, identity, uid)

    async def must_ask(self, image: str, tenancy: Tenancy | None) -> bool:
        """Return whether an image that is here was fetched with credentials, and never by who asks for it now.

        Raises: ProtocolError (`FetchedImagesInvalid`): it is not known.
        """
        if not await asyncio.to_thread(self._fetched.is_anybodys):
            return False
        identity = await self._images.identity(image)
        uid = tenancy.metadata.uid if tenancy is not None else ""
        return identity is not None and await asyncio.to_thread(self._fetched.is_others, image, identity, uid)


def refuse(image: str) -> errors.FairleadError:
    """Return what is said where an image is not on the machine, or is another's, and may not be fetched."""
    message = f'image "{image}" is not on this machine and is not to be pulled'
    return errors.NotFound(
        message, reason="ImageNotFound", hint="import it with `fairlead image import`, or allow pulls"
    )
