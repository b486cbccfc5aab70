"""The codecs a batch may name, and the framings that every Kafka client can read.

Output is always bounded: the caller's limit holds whatever the compressed bytes claim about themselves, so a few
kilobytes cannot take gigabytes of memory. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final

import cramjam

from penstock.errors import CorruptRecords, MessageTooLarge, UnsupportedCompression
from penstock.records.varint import ReadableBuffer

DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
# A batch may be as large as this however small it was, and beyond that only so many times as large as it was.
DECOMPRESSED_BYTES_FREE: Final = 16 * 1024 * 1024
RATIO_MAX: Final = 100

# Java's snappy stream: this magic, two int32 versions, then blocks of int32 length + raw snappy.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_LENGTH: Final = Struct(">i")

# A snappy element of 3 bytes yields at most 64, so a block that claims a greater expansion is lying.
_SNAPPY_EXPANSION_MAX: Final = 64

_FIRST_GUESS_BYTES: Final = 64 * 1024
_GUESS_EXPANSION: Final = 4

# How cramjam says that a fixed output buffer is full (Rust's own text for it). Any other error is corrupt input.
_OUTPUT_FULL: Final = "failed to write whole buffer"


class Codec(IntEnum):
    """How a batch's records are compressed: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompressed_limit(size: int) -> int:
    """What ``size`` compressed bytes may become: a few of them must not become what takes seconds to look through."""
    return min(max(DECOMPRESSED_BYTES_FREE, RATIO_MAX * size), DECOMPRESSED_BYTES_MAX)


def compress(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    """Compress into the framing that the oldest clients of that codec can read; None is the codec's own level."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data) if level is None else cramjam.gzip.compress(data, level))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return _compress_lz4(data, 1 if level is None else level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data) if level is None else cramjam.zstd.compress(data, level))


def decompress(codec: int, data: ReadableBuffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Undo ``compress``, or what any other client wrote; raise MessageTooLarge past ``limit_bytes``."""
    try:
        match codec:
            case Codec.NONE:
                return _copy(data, limit_bytes)
            case Codec.GZIP:
                return _decompress_growing(cramjam.gzip.decompress_into, data, limit_bytes)
            case Codec.SNAPPY:
                return _decompress_snappy(memoryview(data), limit_bytes)
            case Codec.LZ4:
                return _decompress_growing(cramjam.lz4.decompress_into, data, limit_bytes)
            case Codec.ZSTD:
                return _decompress_growing(cramjam.zstd.decompress_into, data, limit_bytes)
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"The {Codec(codec).name.lower()} data of a batch does not decompress: {error}.") from None
    raise UnsupportedCompression(f"Compression codec {codec} is not known; use gzip, snappy, lz4 or zstd.")


def _decompress_growing(
    decompress_into: Callable[[ReadableBuffer, bytearray], int], data: ReadableBuffer, limit_bytes: int
) -> bytes:
    """Decompress a format that does not reliably state its size: guess, and start over with four times as much."""
    capacity = min(max(_FIRST_GUESS_BYTES, len(data) * _GUESS_EXPANSION), limit_bytes)
    while True:
        out = bytearray(capacity)
        try:
            size = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise
            if capacity == limit_bytes:
                raise _too_large(limit_bytes) from None
            capacity = min(capacity * _GUESS_EXPANSION, limit_bytes)
        else:
            with memoryview(out) as view:
                return bytes(view[:size])


def _compress_lz4(data: bytes, level: int) -> bytes:
    # Java refuses frames whose blocks depend on each other, which is what cramjam's one-shot function writes.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _compress_xerial(data: bytes) -> bytes:
    # librdkafka writes bare snappy, Java and kafkajs this framing; every client reads the framing.
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: memoryview, limit_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit_bytes)
    # The versions are not looked at: some producers write them in the wrong byte order.
    if len(data) < len(_XERIAL_HEADER):
        raise CorruptRecords("A snappy stream ends inside its header.")
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        if start > len(data):
            raise CorruptRecords("A snappy stream ends inside a block's length.")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position = start + length
        if length <= 0 or position > len(data):
            raise CorruptRecords("A snappy block has no length that fits its stream.")
        out += _decompress_snappy_block(data[start:position], limit_bytes - len(out))
    return bytes(out)


def _decompress_snappy_block(data: memoryview, limit_bytes: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > len(data) * _SNAPPY_EXPANSION_MAX:
        raise CorruptRecords("A snappy block claims more bytes than its length can hold.")
    if size > limit_bytes:
        raise _too_large(limit_bytes)
    out = bytearray(size)
    cramjam.snappy.decompress_raw_into(data, out)
    return bytes(out)


def _copy(data: ReadableBuffer, limit_bytes: int) -> bytes:
    if len(data) > limit_bytes:
        raise _too_large(limit_bytes)
    return bytes(data)


def _too_large(limit_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(f"A batch takes more than {limit_bytes:,} bytes decompressed; send smaller batches.")
