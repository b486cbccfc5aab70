"""Small state files with a checksum: one line of JSON behind its CRC32C, so that a person can read them too."""

from __future__ import annotations

import crc32c


def encode_checked(body: bytes) -> bytes:
    return b"%08x %s\n" % (crc32c.crc32c(body), body)


def decode_checked(data: bytes) -> bytes | None:
    """The body, or None if any bit of the file is wrong."""
    stated, separator, body = data.rstrip(b"\n").partition(b" ")
    if not separator:
        return None
    return body if stated == b"%08x" % crc32c.crc32c(body) else None
