"""Reads the headers of a tar that a stranger packed, within limits.

Python's own reader stops without an error at a malformed header, as if the archive were whole; it reads a long name of
any size into memory, follows long names of long names until its stack ends, and searches extended headers with a
pattern that takes quadratic time on digits. Here each of those is `tarfile.ReadError`.
Source: CVE-2024-6232 (mended in Python 3.11.10); POSIX.1-2001 pax, extended header.
"""

from __future__ import annotations

import re
import tarfile
from typing import Any, Final, Self, cast

_LARGEST: Final = 1 << 20
"""Bytes of a long name or an extended header: two paths and the attributes of a file are some 100 KiB at most."""
_LONGEST_NUMBER: Final = 1024
_EXTENDED: Final = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)


class _Replayed:
    """A stream that first returns the bytes that were read ahead from it."""

    def __init__(self, ahead: bytes, rest: Any) -> None:
        self._ahead, self._rest = ahead, rest

    def read(self, size: int) -> bytes:
        found, self._ahead = self._ahead[:size], self._ahead[size:]
        return found or cast("bytes", self._rest.read(size))

    def tell(self) -> int:
        return cast("int", self._rest.tell()) - len(self._ahead)


class Header(tarfile.TarInfo):
    """A member whose headers are read within limits."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next member. Raises: ReadError; EOFHeaderError: the archive has come to its end."""
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # as all that follow: undocumented
            raise
        except (tarfile.HeaderError, RecursionError) as error:
            raise tarfile.ReadError(f"not a header of a tar: {error}") from None

    def _proc_member(self, archive: Any) -> Any:
        """Bound the size and content of extended headers; CPython's source names this method as the one to override."""
        if self.type not in _EXTENDED:
            return super()._proc_member(archive)  # type: ignore[misc]
        if not 0 <= self.size <= _LARGEST:
            raise tarfile.ReadError(f"a name or header of {self.size} bytes")
        stream = archive.fileobj
        data = stream.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
        if any(len(run) > _LONGEST_NUMBER for run in re.findall(rb"[0-9]+", data)):
            raise tarfile.ReadError("a header of digits")
        archive.fileobj = _Replayed(data, stream)
        try:
            return super()._proc_member(archive)  # type: ignore[misc]
        finally:
            archive.fileobj = stream
