"""Reads what the hook needs of an ELF library: its SONAME, and CUDA's forward compatibility note.

The files come partly from images, so nothing in them is believed: reads are bounded, counts are bounded, and whatever
does not fit is None. Little-endian 64-bit files only: no other kind of GPU driver exists. Files are read in place, a
few hundred bytes of them; they are never mapped, since an image could cut them off under us.
Source: System V ABI, "Object Files" and "Dynamic Linking"; elf(5).
"""

import posix

_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_SEGMENT_BYTES, _SEGMENTS_LIMIT = 56, 128
_SECTION_LIMIT_BYTES = 64 << 10
_NAME_LIMIT_BYTES = 256
_FORWARD_NOTE = b"fwd_compatibility"
_Segment = tuple[int, int, int, int]


def soname(handle: int) -> str | None:
    """Return DT_SONAME of an open file, a plain file name; None: none, or not such a file."""
    # The dynamic table is pairs of 8-byte words, tag and value; values are addresses in memory, not places in the file.
    segments = _segments(handle)
    found: dict[int, int] = {}
    for kind, offset, _, size in segments:
        if kind == _PT_DYNAMIC:
            table = _bounded(handle, offset, min(size, _SECTION_LIMIT_BYTES))
            for place in range(0, len(table) - 15, 16):
                tag = _word(table, place, 8)
                if tag == _DT_NULL:
                    break
                found.setdefault(tag, _word(table, place + 8, 8))
    if _DT_STRTAB not in found or _DT_SONAME not in found:
        return None
    place = _file_offset(segments, found[_DT_STRTAB]) + found[_DT_SONAME]
    text = _bounded(handle, place, _NAME_LIMIT_BYTES).partition(b"\0")[0].decode("utf-8", "replace")
    return text if text and "/" not in text and text not in {".", ".."} else None


def forward_note(handle: int) -> str | None:
    """Return the note (JSON) in which a CUDA compatibility library says which drivers it works with."""
    for kind, offset, _, size in _segments(handle):
        if kind != _PT_NOTE:
            continue
        data = _bounded(handle, offset, min(size, _SECTION_LIMIT_BYTES))
        # A note: size of its name, size of its body, type; then both, padded to 4 bytes. `place` grows by 12 at least.
        place = 0
        while place + 12 <= len(data):
            names, length = _word(data, place, 4), _word(data, place + 4, 4)
            body = place + 12 + _aligned(names)
            text = data[body : body + length]
            if _FORWARD_NOTE in data[place + 12 : body] or text.startswith(b"{"):
                return text.rstrip(b"\0").decode("utf-8", "replace")
            place = body + _aligned(length)
    return None


def _segments(handle: int) -> list[_Segment]:
    """Return kind, file offset, address and size of each segment."""
    # Elf64_Ehdr: e_phoff at 32, e_phentsize at 54, e_phnum at 56. Elf64_Phdr: p_type, p_offset at 8, p_vaddr at 16,
    # p_filesz at 32. The count is the file's word, so it is bounded.
    head = posix.pread(handle, 64, 0)
    if not head.startswith(_MAGIC) or len(head) < 64 or _word(head, 54, 2) != _SEGMENT_BYTES:
        return []
    count = min(_word(head, 56, 2), _SEGMENTS_LIMIT)
    table = _bounded(handle, _word(head, 32, 8), count * _SEGMENT_BYTES)
    places = range(0, len(table) - _SEGMENT_BYTES + 1, _SEGMENT_BYTES)
    return [
        (_word(table, at, 4), _word(table, at + 8, 8), _word(table, at + 16, 8), _word(table, at + 32, 8))
        for at in places
    ]


def _bounded(handle: int, place: int, size: int) -> bytes:
    """Read at an offset that may be nonsense."""
    return posix.pread(handle, size, place) if place < 1 << 62 else b""


def _file_offset(segments: list[_Segment], address: int) -> int:
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    return address


def _word(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _aligned(size: int) -> int:
    return size + 3 & ~3
