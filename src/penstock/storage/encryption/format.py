"""The bytes of an encrypted file: key slots, pages and frames. Pure functions over bytes; docs/formats/encryption.md.

A file is pages of 32 KiB. A page begins with the position of its first byte of content, and is filled with frames. A
frame is what one write put into one page, sealed under a nonce of its own. No frame is ever written over another one
that counts, so a torn write tears nothing but itself. A frame is bound to its file, its place and its position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.storage.encryption.keys import KEY_BYTES, WrappedKey
from penstock.storage.encryption.scratch import Scratch
from penstock.storage.encryption_note import MAGIC
from penstock.storage.files import Buffer

FORMAT_VERSION: Final = 1
PAGE_BYTES: Final = 32 * 1024  # the size of a frame has 15 bits
SLOT_BYTES: Final = 512  # what a disk writes at once
HEADER_BYTES: Final = 2 * SLOT_BYTES
SLOTS_AT: Final = (
    0,
    SLOT_BYTES,
    PAGE_BYTES,
)  # two to rewrite one after the other, one that no bad sector takes with them
FRAME_OVERHEAD: Final = 34
ROOM_MIN: Final = 64  # less is left unused at the end of a page
CUT: Final = 0x8000  # in the size of a frame: it holds where the content ends instead of content
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
ID_BYTES: Final = 16

_SLOT: Final = Struct(">8sHHI16s40s")
_CHECK: Final = Struct(">I")
_PAGE_HEAD: Final = Struct(">QI")
_PAGE_CHECKED: Final = Struct(">16sQQ")
_FRAME_HEAD: Final = Struct(">HHH12s")
_SIZES: Final = Struct(">HHH")
_BOUND_TO: Final = Struct(">16sQQH")  # file, place of the frame, position of its content, size
_END: Final = Struct(">Q")
_REDO: Final = Struct(">8sQI")  # magic, place, size of the frame before it; then the CRC32C of all that
_scratch: Final = Scratch()
_REDO_MAGIC: Final = b"\x8ePSTREDO"
PAGE_HEAD_BYTES: Final = _PAGE_HEAD.size
SIZES_BYTES: Final = _SIZES.size
_PAGE_OVERHEAD_MAX: Final = SLOT_BYTES + PAGE_HEAD_BYTES + FRAME_OVERHEAD + ROOM_MIN
_PAGE_CONTENT_MIN: Final = PAGE_BYTES - _PAGE_OVERHEAD_MAX


class KeySlot(NamedTuple):
    """One copy of a file's data key, wrapped."""

    file_id: bytes
    key: WrappedKey


def encode_slot(slot: KeySlot) -> bytes:
    body = _SLOT.pack(MAGIC, FORMAT_VERSION, 0, slot.key.version, slot.file_id, slot.key.wrapped)
    return (body + _CHECK.pack(crc32c.crc32c(body))).ljust(SLOT_BYTES, b"\0")


def decode_slot(data: bytes) -> KeySlot | None:
    """A copy of the key; None if this is none, or is damaged."""
    if len(data) < _SLOT.size + _CHECK.size or not data.startswith(MAGIC):
        return None
    body = data[: _SLOT.size]
    if _CHECK.unpack_from(data, _SLOT.size)[0] != crc32c.crc32c(body):
        return None
    _, version, _, master_version, file_id, wrapped = _SLOT.unpack(body)
    return KeySlot(file_id, WrappedKey(master_version, wrapped)) if version == FORMAT_VERSION else None


def is_torn_header(head: bytes) -> bool:
    """Whether a file without a good slot was begun as an encrypted one: the write of its header was torn."""
    beginning = head[: len(MAGIC)]
    return MAGIC.startswith(beginning) or not head[:HEADER_BYTES].strip(b"\0")


def head_at(page: int) -> int:
    """Where in a page its head is: behind the key slots, where it has some."""
    if page == 0:
        return HEADER_BYTES
    return SLOT_BYTES if page == 1 else 0


def stated_size(data: bytes, at: int = 0) -> int:
    """The size that a frame begins with, three times: a flipped bit in one of them changes nothing."""
    one, two, three = _SIZES.unpack_from(data, at)
    size: int = (one & two) | (one & three) | (two & three)
    return size


class Frame(NamedTuple):
    """A frame as its page lists it: its place in the file, and which bytes of the content it holds."""

    at: int
    size: int
    start: int
    end: int
    is_cut: bool

    @property
    def behind(self) -> int:
        """The place of what follows."""
        return self.at + FRAME_OVERHEAD + self.size


class Span(NamedTuple):
    """Some of the content, from a position to another."""

    start: int
    end: int


HEAD_ROOM_BYTES: Final = SLOT_BYTES + PAGE_HEAD_BYTES + SIZES_BYTES  # the beginning of a page, to its first frame


def _may_begin_cut(data: memoryview, at: int, page: int, page_end: int) -> bool:
    """Whether the frame behind another one, in its page or in the next, may be a cut of it."""
    if page_end - at < ROOM_MIN:
        at = page_end + head_at(page + 1) + PAGE_HEAD_BYTES
    if at + SIZES_BYTES > len(data):
        return False
    return (data[at] | data[at + 2] | data[at + 4]) >= CUT >> 8


class Cipher:
    """The data key of one file: seals and opens its frames."""

    __slots__ = ("_gcm", "data_key", "file_id")

    def __init__(self, file_id: bytes, data_key: bytes) -> None:
        self.file_id = file_id
        self.data_key = data_key
        self._gcm = AESGCM(data_key)

    @classmethod
    def make(cls) -> Cipher:
        return cls(os.urandom(ID_BYTES), os.urandom(KEY_BYTES))

    def seal(self, at: int, start: int, content: Buffer, flag: int = 0) -> tuple[bytes, bytes]:
        """A frame for a place and a position, in two parts, under a nonce that no other frame has."""
        size = len(content) | flag
        nonce = os.urandom(NONCE_BYTES)  # never kept for later: a pool of them would be the same in a forked process
        sealed = self._gcm.encrypt(nonce, content, _BOUND_TO.pack(self.file_id, at, start, size))
        return _FRAME_HEAD.pack(size, size, size, nonce), sealed

    def open(self, data: bytes, at_in_data: int, frame: Frame) -> bytes | None:
        """The content of a frame; None if any bit of it is wrong, or it is not where it was written."""
        nonce = data[at_in_data + SIZES_BYTES : at_in_data + _FRAME_HEAD.size]
        sealed = data[at_in_data + _FRAME_HEAD.size : at_in_data + FRAME_OVERHEAD + frame.size]
        size = frame.size | (CUT if frame.is_cut else 0)
        try:
            return self._gcm.decrypt(nonce, sealed, _BOUND_TO.pack(self.file_id, frame.at, frame.start, size))
        except InvalidTag:
            return None

    def open_run(self, page: int, data: memoryview, base: int, start: int, span: Span, found: memoryview) -> int | None:
        """Put what a page holds of a span into ``found``, which ends where the span does; how far that goes.

        ``data`` holds the page from ``base`` on and, where there is one, the beginning of the next. This is the
        quick way, for a page without cuts and without damage. None means that there may be either: nothing that was
        found counts then, and `frames` has to look.
        """
        at = base + head_at(page) + PAGE_HEAD_BYTES
        page_end = base + PAGE_BYTES
        data_end = min(len(data), page_end)
        to_place = page * PAGE_BYTES - base
        position, end = span
        while page_end - at >= ROOM_MIN and at + FRAME_OVERHEAD < data_end:
            size, two, three, nonce = _FRAME_HEAD.unpack_from(data, at)
            behind = at + FRAME_OVERHEAD + size
            if size != two or size != three or size == 0 or behind > data_end:
                return None  # a cut is larger than any page
            frame_end = start + size
            if frame_end > position:
                sealed = data[at + _FRAME_HEAD.size : behind]
                bound_to = _BOUND_TO.pack(self.file_id, at + to_place, start, size)
                try:
                    if start >= position and frame_end <= end:
                        self._gcm.decrypt_into(nonce, sealed, bound_to, found[start - position : frame_end - position])
                    else:
                        low, high = max(start, position), min(frame_end, end)
                        content = self._gcm.decrypt(nonce, sealed, bound_to)
                        found[low - position : high - position] = content[low - start : high - start]
                except InvalidTag:
                    return None
                if frame_end >= end:
                    return None if _may_begin_cut(data, behind, page, page_end) else end
            start, at = frame_end, behind
        return None if _may_begin_cut(data, at, page, page_end) else start

    # -- pages --------------------------------------------------------------------------------------------------------

    def page_head(self, page: int, start: int) -> bytes:
        return _PAGE_HEAD.pack(start, crc32c.crc32c(_PAGE_CHECKED.pack(self.file_id, page, start)))

    def page_start(self, page: int, head: Buffer) -> int | None:
        """The position that a page's head tells; None if it is damaged."""
        if len(head) < PAGE_HEAD_BYTES:
            return None
        start: int
        start, check = _PAGE_HEAD.unpack_from(head)
        return start if check == crc32c.crc32c(_PAGE_CHECKED.pack(self.file_id, page, start)) else None

    def write(self, at: int, start: int, content: Buffer, slot: bytes, before: bytes = b"") -> memoryview:
        """What to write at the end of a file to add content behind position ``start``.

        The file ends at ``at`` once ``before`` is written, which becomes part of it. The answer is good until this
        thread asks again.
        """
        rest = memoryview(content)
        pages = len(rest) // _PAGE_CONTENT_MIN + 2
        made = _scratch.take(len(before) + len(rest) + pages * _PAGE_OVERHEAD_MAX)
        nonces = os.urandom(NONCE_BYTES * pages)
        made[: len(before)] = before
        to_made = len(before) - at
        used = 0
        while rest:
            page, in_page = divmod(at, PAGE_BYTES)
            if in_page == 0 and page > 1:
                head = _PAGE_CHECKED.pack(self.file_id, page, start)
                _PAGE_HEAD.pack_into(made, at + to_made, start, crc32c.crc32c(head))
                at += PAGE_HEAD_BYTES
            else:  # the rest of a page or a key slot comes before it
                parts: list[bytes] = []
                turned = self._turn_page(parts, at, start, slot)
                made[at + to_made : turned + to_made] = b"".join(parts)
                at = turned
            size = min(len(rest), PAGE_BYTES - at % PAGE_BYTES - FRAME_OVERHEAD)
            nonce = nonces[used : used + NONCE_BYTES]
            used += NONCE_BYTES
            _FRAME_HEAD.pack_into(made, at + to_made, size, size, size, nonce)
            place = at + to_made + _FRAME_HEAD.size
            bound_to = _BOUND_TO.pack(self.file_id, at, start, size)
            self._gcm.encrypt_into(nonce, rest[:size], bound_to, made[place : place + size + TAG_BYTES])
            at += FRAME_OVERHEAD + size
            start += size
            rest = rest[size:]
        assert used <= len(nonces), "no frame is without a nonce of its own"
        return made[: at + to_made]

    def cut(self, at: int, before: int, end: int, slot: bytes) -> list[bytes]:
        """What to write at the end of a file, where its content ends at ``before``, to have it end at ``end``.

        For the middle of a frame, which stays as it is.
        """
        parts: list[bytes] = []
        place = self._turn_page(parts, at, end, slot)
        parts += self.seal(place, before if place == at else end, _END.pack(end), CUT)
        return parts

    def _turn_page(self, parts: list[bytes], at: int, start: int, slot: bytes) -> int:
        """Where the next frame goes; before it the rest of a full page, and the head of a new one."""
        page, in_page = divmod(at, PAGE_BYTES)
        if PAGE_BYTES - in_page < ROOM_MIN:
            parts.append(bytes(PAGE_BYTES - in_page))
            page, in_page = page + 1, 0
        if in_page > head_at(page):
            return at
        if page == 1:
            parts.append(slot)
        parts.append(self.page_head(page, start))
        return page * PAGE_BYTES + head_at(page) + PAGE_HEAD_BYTES

    def frames(self, page: int, data: bytes, start: int) -> Iterator[Frame]:
        """The frames of a page whose content begins at ``start``, as far as each leads to the next.

        Of these only cuts are authenticated here: the others are when they are opened.
        """
        base = page * PAGE_BYTES
        at = head_at(page) + PAGE_HEAD_BYTES
        last = min(len(data), PAGE_BYTES) - FRAME_OVERHEAD
        while at < last and PAGE_BYTES - at >= ROOM_MIN:
            stated = stated_size(data, at)
            size = stated & ~CUT
            if size == 0 or at > last - size:
                return
            frame = Frame(base + at, size, start, start + size, is_cut=False)
            if stated & CUT:
                frame = Frame(base + at, size, start, 0, is_cut=True)
                end = self.open(data, at, frame)
                if end is None or size != _END.size:
                    return
                frame = frame._replace(end=_END.unpack(end)[0])
            yield frame
            start = frame.end
            at += FRAME_OVERHEAD + size


# -- a frame that is written anew in its place -------------------------------------------------------------------------


def encode_redo(at: int, frame: bytes) -> bytes:
    """What stands at the end of a file while a frame is written over: after a crash it is written over once more."""
    tail = _REDO.pack(_REDO_MAGIC, at, len(frame))
    return frame + tail + _CHECK.pack(crc32c.crc32c(frame + tail))


class Redo(NamedTuple):
    at: int
    frame: bytes
    size: int  # of all of it


REDO_TAIL_BYTES: Final = _REDO.size + _CHECK.size
REDO_BYTES_MAX: Final = PAGE_BYTES + REDO_TAIL_BYTES


def decode_redo(data: bytes) -> Redo | None:
    """What the last bytes of a file ask for; nearly always nothing."""
    tail = data[-REDO_TAIL_BYTES:]
    if not tail.startswith(_REDO_MAGIC) or len(tail) < REDO_TAIL_BYTES:
        return None
    _, at, size = _REDO.unpack_from(tail)
    whole = data[-REDO_TAIL_BYTES - size :]
    if len(whole) != size + REDO_TAIL_BYTES or _CHECK.unpack(whole[-_CHECK.size :])[0] != crc32c.crc32c(
        whole[: -_CHECK.size]
    ):
        return None
    return Redo(at, whole[:size], len(whole))
