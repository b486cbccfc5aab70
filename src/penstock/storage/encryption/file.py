"""An encrypted file: the content that storage sees, over the frames that are on disk.

Positions are those of the content; *places* are those of the file underneath. What fails its tag is not handed out:
it is unreadable, like a bad sector (`StorageError`), and storage walks around it. There is one exception. Behind the
last good frame of a file there may be what a torn write left, which was never synced. Recovery has to find it to cut
it, so it reads as zeros, which pass no checksum.

Threads: as for a plain file, one writes, any may read. ``lock`` keeps the writer's rare changes of key slots and of the
file's length apart from a rotation of keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from penstock.errors import StorageError, UnreadableBytes
from penstock.storage.encryption.format import (
    CUT,
    FRAME_OVERHEAD,
    HEAD_ROOM_BYTES,
    HEADER_BYTES,
    PAGE_BYTES,
    PAGE_HEAD_BYTES,
    REDO_BYTES_MAX,
    ROOM_MIN,
    SIZES_BYTES,
    SLOT_BYTES,
    SLOTS_AT,
    Cipher,
    Frame,
    Redo,
    Span,
    decode_redo,
    decode_slot,
    encode_redo,
    head_at,
    stated_size,
)
from penstock.storage.encryption.scratch import Scratch
from penstock.storage.files import Buffer, File, read_around

_WINDOW_PAGES: Final = 3  # read at once; the allocator keeps memory of less than 128 KiB
_STARTS_KEPT: Final = 1024

_scratch: Final = Scratch()
MakeSlot = Callable[[Cipher], bytes]


def _is_cut(frame: Frame) -> bool:
    return frame.is_cut


class EncryptedFile:
    """A file whose content is sealed; it has no cipher while nothing was written, or where its header is torn."""

    __slots__ = (
        "_cipher",
        "_inner",
        "_is_broken",
        "_lock",
        "_make_slot",
        "_starts",
        "_torn_at",
        "_torn_from",
        "path",
        "size",
    )

    def __init__(
        self,
        inner: File,
        path: Path,
        cipher: Cipher | None,
        make_slot: MakeSlot,
        lock: threading.Lock,
        *,
        beginning: bytes,
        repairs: bool,
    ) -> None:
        self._inner = inner
        self._cipher = cipher
        self._make_slot = make_slot
        self._lock = lock
        self.path = path
        self.size = 0
        self._starts: dict[int, int] = {}  # of pages: the position at which the content of each begins
        self._torn_from: int | None = None  # the position from which on a torn write left only garbage
        self._torn_at = 0  # and the place of that
        self._is_broken = False  # the last page cannot be read to its end
        self._load(beginning, repairs=repairs)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _load(self, beginning: bytes, *, repairs: bool) -> None:
        """Find where the content ends, and where what a torn write left begins."""
        place = self._inner.size
        if self._cipher is None:
            self.size = place
            self._torn_from = 0 if place else None
            return
        unreadable: list[int] = []
        tail_at = max(0, min((place - 1) // PAGE_BYTES * PAGE_BYTES, place - REDO_BYTES_MAX))
        tail = beginning[tail_at:]
        if place > len(beginning):
            tail = read_around(self._inner, tail_at, place - tail_at, unreadable.append)
        redo = decode_redo(tail[-REDO_BYTES_MAX:]) if place > HEADER_BYTES else None
        if redo is not None:
            place = tail_at = self._finish(redo, repairs=repairs)
        last = (place - 1) // PAGE_BYTES
        listed_end, position, behind = -1, 0, HEADER_BYTES
        for page in range(last, -1, -1):
            at, size = page * PAGE_BYTES, min(PAGE_BYTES, place - page * PAGE_BYTES)
            if at >= tail_at:
                data = tail[at - tail_at :][:size]
            else:
                data = read_around(self._inner, at, size, unreadable.append)
            if redo is not None and redo.at // PAGE_BYTES == page:
                data = data[: redo.at - at] + redo.frame + data[redo.at - at + len(redo.frame) :]
            frames = self._list(page, data)
            if page == last and frames and frames[-1].behind == place:
                listed_end = frames[-1].end
            sound = next((each for each in reversed(frames) if each.is_cut or self._open(each, data) is not None), None)
            if sound is not None:
                position, behind = sound.end, sound.behind
                break
        self.size = position
        torn_bytes = place - behind
        if torn_bytes <= 0 or (torn_bytes < ROOM_MIN and place % PAGE_BYTES == 0):
            return  # nothing, or the rest of a page in which nothing had room
        self.size = (
            max(listed_end, position + max(torn_bytes - FRAME_OVERHEAD, 1)) if listed_end <= position else listed_end
        )
        if unreadable:
            self._is_broken = True  # a disk that cannot read is no torn write: it may read again
        else:
            self._torn_from, self._torn_at = position, behind

    def _finish(self, redo: Redo, *, repairs: bool) -> int:
        """Write a frame over that a crash may have left half written; where the file ends without the note of it."""
        end = self._inner.size - redo.size
        if repairs:
            self._inner.patch(redo.at, redo.frame)
            self._inner.sync()
            self._inner.truncate(end)
        return end

    @property
    def _slot(self) -> bytes:
        assert self._cipher is not None, "only what has a key has slots for it"
        return self._make_slot(self._cipher)

    def _open(self, frame: Frame, page_data: bytes) -> bytes | None:
        assert self._cipher is not None, "there is no frame without a key"
        return self._cipher.open(page_data, frame.at % PAGE_BYTES, frame)

    # -- pages --------------------------------------------------------------------------------------------------------

    @property
    def _last_page(self) -> int:
        return (self._inner.size - 1) // PAGE_BYTES

    def _page(self, page: int) -> bytes:
        return read_around(self._inner, page * PAGE_BYTES, PAGE_BYTES)

    def _list(self, page: int, data: bytes) -> list[Frame]:
        """The frames of a page, each with the end that cuts behind it leave it."""
        if self._cipher is None:
            return []
        start = self._cipher.page_start(page, data[head_at(page) :]) if page else 0
        if start is None:
            start = self._derived_start(page)
        if start is None:
            return []
        frames = list(self._cipher.frames(page, data, start))
        for at in range(len(frames) - 1, 0, -1):
            if frames[at].is_cut:
                frames[at - 1] = frames[at - 1]._replace(end=min(frames[at - 1].end, frames[at].end))
        return frames

    def _start(self, page: int) -> int | None:
        """The position from which on a page has the content; None if nothing tells.

        This is where the page begins, or less if it begins with cuts of the page before.
        """
        if page == 0:
            return 0
        start = self._starts.get(page)
        if start is None:
            first = read_around(self._inner, page * PAGE_BYTES + head_at(page), PAGE_HEAD_BYTES + SIZES_BYTES)
            start = None if self._cipher is None else self._cipher.page_start(page, first)
            if start is None:
                start = self._derived_start(page)
            sizes = first[PAGE_HEAD_BYTES:]
            if (
                start is not None
                and self._cipher is not None
                and len(sizes) == SIZES_BYTES
                and stated_size(sizes) >= CUT
            ):
                frames = self._cipher.frames(page, self._page(page), start)
                start = min((frame.end for frame in takewhile(_is_cut, frames)), default=start)
            if start is not None:
                if len(self._starts) >= _STARTS_KEPT:
                    self._starts.clear()
                self._starts[page] = start
        return start

    def _stated_start(self, page: int) -> int | None:
        if page == 0:
            return 0
        assert self._cipher is not None, "pages have keys"
        return self._cipher.page_start(
            page, read_around(self._inner, page * PAGE_BYTES + head_at(page), PAGE_HEAD_BYTES)
        )

    def _derived_start(self, page: int) -> int | None:
        before = self._stated_start(page - 1)
        if before is None or self._cipher is None:
            return None
        frames = list(self._cipher.frames(page - 1, self._page(page - 1), before))
        is_whole = frames and page * PAGE_BYTES - frames[-1].behind < ROOM_MIN
        return frames[-1].end if is_whole else None

    def _page_of(self, position: int) -> int:
        """The last page that is known to begin at or before a position."""
        low, high = 0, self._last_page
        while low < high:
            middle = (low + high + 1) // 2
            nearby = (
                (*range(middle, low, -1), *range(middle + 1, high + 1)) if self._start(middle) is None else (middle,)
            )
            page = next((each for each in nearby if self._start(each) is not None), None)
            if page is None:
                return low
            start = self._start(page)
            assert start is not None, "it was there a moment ago"
            if start <= position:
                low = page
            else:
                high = page - 1 if page <= middle else low
        return low

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes:
        end = min(position + size, self.size)
        if position >= end:
            return b""
        found = _scratch.take(end - position)
        sound_end = end if self._torn_from is None else min(end, self._torn_from)
        missing = self._read_sound(position, found[: sound_end - position]) if position < sound_end else 0
        if sound_end < end:
            torn = end - max(position, sound_end)
            found[len(found) - torn :] = bytes(torn)
        return bytes(found[: len(found) - missing])  # fewer where another process has cut the file

    def _read_sound(self, position: int, found: memoryview) -> int:
        """Fill in content, the quick way page by page; with care from the first page on that has cuts or damage.

        The answer is how many bytes there are no longer.
        """
        begin, end = position, position + len(found)
        page, last = self._page_of(position), self._last_page
        cipher = self._cipher
        assert cipher is not None, "what has sound content has a key"
        start = None
        while position < end and page <= last:
            count = min((end - position) // PAGE_BYTES + 1, _WINDOW_PAGES, last - page + 1)
            try:
                window = memoryview(self._inner.read(page * PAGE_BYTES, count * PAGE_BYTES + HEAD_ROOM_BYTES))
            except StorageError:
                break
            for base in range(0, min(len(window), count * PAGE_BYTES), PAGE_BYTES):
                if start is None:
                    start = cipher.page_start(page, window[base + head_at(page) :]) if page else 0
                reached = None
                if start is not None and start <= position:
                    span = Span(position, end)
                    reached = cipher.open_run(page, window, base, start, span, found[position - begin :])
                if reached == end:
                    return 0
                if page < last:
                    start = cipher.page_start(page + 1, window[base + PAGE_BYTES + head_at(page + 1) :])
                if reached is None or (page < last and start != reached):
                    return self._fill_with_care(page, position, found[position - begin :])
                position = max(position, reached)
                page += 1
        return self._fill_with_care(min(page, last), position, found[position - begin :])

    def _fill_with_care(self, page: int, position: int, found: memoryview) -> int:
        at = 0
        for part in self._read_with_care(page, position, position + len(found)):
            found[at : at + len(part)] = part
            at += len(part)
        return len(found) - at

    def _read_with_care(self, first_page: int, position: int, end: int) -> Iterator[bytes]:
        for page, data in self._pages(first_page, end - position):
            next_start = self._start(page + 1) if page < self._last_page else None
            for frame in self._list(page, data):
                stop = frame.end if next_start is None else min(frame.end, next_start)
                if frame.is_cut or stop <= position:
                    continue
                content = self._open(frame, data) if frame.start <= position else None
                if content is None:
                    raise self._unreadable(position, stop if frame.start <= position else frame.start)
                yield content[position - frame.start : min(stop, end) - frame.start]
                position = min(stop, end)
                if position == end:
                    return
            if next_start is not None and next_start > position:
                raise self._unreadable(position, next_start)
        if self._inner.current_size() >= self._inner.size:
            raise self._unreadable(position, end)
        # Another process has cut the file: there is no more to read.

    def _pages(self, page: int, wanted: int) -> Iterator[tuple[int, bytes]]:
        """Pages from one on, read many at once where much is wanted."""
        last = self._last_page
        while page <= last:
            count = min(max(wanted // PAGE_BYTES + 1, 1), _WINDOW_PAGES, last - page + 1)
            try:
                window = self._inner.read(page * PAGE_BYTES, count * PAGE_BYTES)
            except StorageError:
                window, count = self._page(page), 1
            for at in range(0, len(window), PAGE_BYTES):
                yield page, window[at : at + PAGE_BYTES]
                page += 1
            wanted -= len(window)
            if len(window) < count * PAGE_BYTES:
                return

    def _unreadable(self, start: int, end: int) -> UnreadableBytes:
        error = UnreadableBytes(f"Cannot read {self.path}: bytes {start} to {end} are not what was written.")
        error.start, error.end = start, end
        return error

    def current_size(self) -> int:
        there = self._inner.current_size()
        if there >= self._inner.size or self._cipher is None:
            return min(self.size, there) if self._cipher is None else self.size
        for page in range((there - 1) // PAGE_BYTES, -1, -1):
            frames = self._list(page, self._inner.read(page * PAGE_BYTES, PAGE_BYTES))
            if frames:
                return min(self.size, frames[-1].end)
        return 0

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if not data:
            return
        if self._torn_from is not None:
            self._mend()
        place, cipher = self._inner.size, self._cipher
        in_page = place % PAGE_BYTES
        if (
            in_page
            and PAGE_BYTES - in_page >= max(ROOM_MIN, len(data) + FRAME_OVERHEAD)
            and cipher
            and not self._is_broken
        ):
            self._inner.write(b"".join(cipher.seal(place, self.size, data)))  # no new page, so no key slot
        else:
            with self._lock:
                self._write_across(place, data)
        self.size += len(data)

    def _write_across(self, place: int, data: Buffer) -> None:
        """Write what may need a new page, and so a key slot: the key of the file or another copy of it."""
        before = b""
        cipher = self._cipher
        if cipher is None:
            cipher = Cipher.make()
            before = self._make_slot(cipher) * (HEADER_BYTES // SLOT_BYTES)
            place = HEADER_BYTES
        elif self._is_broken:
            before = bytes(-place % PAGE_BYTES)
            place += len(before)
        slot = self._make_slot(cipher) if place <= PAGE_BYTES else b""  # of the second page, if that begins here
        self._inner.write(cipher.write(place, self.size, data, slot, before))
        self._cipher, self._is_broken = cipher, False

    def _mend(self) -> None:
        """Take the place of what a torn write left. It is worthless, but it has a length."""
        assert self._torn_from is not None, "there is something torn"
        garbage = self.size - self._torn_from
        self._drop_torn()
        self.write(bytes(garbage))

    def _drop_torn(self) -> None:
        assert self._torn_from is not None, "there is something torn"
        self._cut_inner(self._torn_at, self._torn_from)
        self._torn_from = None

    def _cut_inner(self, place: int, position: int) -> None:
        with self._lock:
            if place == HEADER_BYTES:
                place, self._cipher = 0, None  # what is written next gets another key
            elif 0 < place < PAGE_BYTES + SLOT_BYTES <= self._inner.size:
                self._keep_key()
            self._inner.truncate(place)
        self._starts.clear()
        self.size = position

    def _keep_key(self) -> None:
        """The copy of the key in the second page is about to be cut off: see to it that the others are good."""
        for at in SLOTS_AT[:-1]:
            if decode_slot(read_around(self._inner, at, SLOT_BYTES)) is None:
                self._inner.patch(at, self._slot)
                self._inner.sync()

    def truncate(self, size: int) -> None:
        if self._torn_from is not None and size != self.size:
            if size <= self._torn_from:
                self._drop_torn()
            else:
                self._mend()
        if size > self.size:
            self.write(bytes(size - self.size))
        elif size == 0 and self.size:
            self._cut_inner(HEADER_BYTES, 0)
            self._is_broken = False
        elif size < self.size:
            self._cut(size)

    def _cut(self, size: int) -> None:
        """End the content at a position; in the middle of a frame by a note behind it, for the frame stays as it is."""
        behind, end = self._frame_before(size)
        self._cut_inner(behind, end)
        self._is_broken = False
        if end > size:
            assert self._cipher is not None, "what is empty can't be cut"
            with self._lock:
                self._inner.write(b"".join(self._cipher.cut(self._inner.size, end, size, self._slot)))
            self.size = size
        elif end < size:  # what was there is damaged
            self.write(bytes(size - end))

    def _frame_before(self, position: int) -> tuple[int, int]:
        """The place behind the frame with the byte before a position, and behind its cuts; the position of its end."""
        page = self._page_of(position - 1)
        behind, end = HEADER_BYTES if page == 0 else page * PAGE_BYTES, self._start(page) or 0
        has_reached = False
        for number in range(page, self._last_page + 1):
            next_start = self._start(number + 1) if number < self._last_page else None
            frames = self._list(number, self._page(number))
            for frame in frames:
                if not frame.is_cut and (has_reached or frame.start >= position):
                    return behind, end
                behind, end = frame.behind, frame.end if next_start is None else min(frame.end, next_start)
                has_reached = has_reached or end >= position
            if has_reached and number > page:
                break
        return behind, end

    def patch(self, position: int, data: Buffer) -> None:
        end = position + len(data)
        is_same = self.read(position, len(data)) == data
        for page in range(self._page_of(position), self._last_page + 1):
            start = self._start(page)
            if start is None or start >= end:
                break
            page_data = self._page(page)
            if is_same:
                self._inner.patch(page * PAGE_BYTES, page_data)  # bytes written over themselves can't be torn
                continue
            for frame in self._list(page, page_data):
                if not frame.is_cut and frame.start < end and frame.end > position:
                    self._rewrite(frame, page_data, position, data)

    def _rewrite(self, frame: Frame, page_data: bytes, position: int, data: Buffer) -> None:
        """Seal a frame anew in its place. A copy at the end of the file is there first, or a crash would tear it."""
        content = self._open(frame, page_data)
        if content is None or self._cipher is None:
            raise self._unreadable(frame.start, frame.end)
        low, high = max(position, frame.start), min(position + len(data), frame.start + len(content))
        changed = bytearray(content)
        changed[low - frame.start : high - frame.start] = data[low - position : high - position]
        sealed = b"".join(self._cipher.seal(frame.at, frame.start, changed))
        with self._lock:
            place = self._inner.size
            self._inner.write(encode_redo(frame.at, sealed))
            self._inner.sync()
            self._inner.patch(frame.at, sealed)
            self._inner.sync()
            self._inner.truncate(place)

    def sync(self) -> None:
        self._inner.sync()

    def reserve(self, size: int) -> None:
        # Small batches have a larger share of what frames need: room for those comes as they do.
        self._inner.reserve(size + size // 64 + 2 * PAGE_BYTES if size else 0)

    # -- the file underneath ------------------------------------------------------------------------------------------

    def changed_ns(self) -> int:
        return self._inner.changed_ns()

    def stamp_ns(self) -> int:
        return self._inner.stamp_ns()

    def fileno(self) -> int:
        return -1  # what lies on the disk is not what may be sent

    def sync_descriptor(self) -> int:
        return self._inner.sync_descriptor()

    def close(self) -> None:
        self._inner.close()

    def is_cached(self, position: int, size: int = 1) -> bool:
        return self._cipher is None or self._inner.is_cached(*self._about(position, size))

    def let_go(self, position: int, size: int) -> None:
        if self._cipher is not None:
            self._inner.let_go(*self._about(position, size))

    def _about(self, position: int, size: int) -> tuple[int, int]:
        """The place of some content, in whole pages, and about how many bytes it takes there."""
        return self._page_of(position) * PAGE_BYTES, size + size // 64 + PAGE_BYTES
