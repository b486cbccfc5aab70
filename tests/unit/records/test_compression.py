"""Codecs: round trips, the framings of other clients, and decompression that stays within its limit."""

from __future__ import annotations

import gzip
import tracemalloc

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptRecords, MessageTooLarge, PenstockError, UnsupportedCompression
from penstock.records import Codec, compress, decompress

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
MIB = 1024 * 1024
TEXT = b"one replicated log, read three ways. " * 5000

AIOKAFKA_ENCODE = {
    Codec.GZIP: aiokafka_codec.gzip_encode,
    Codec.SNAPPY: aiokafka_codec.snappy_encode,
    Codec.LZ4: aiokafka_codec.lz4_encode,
    Codec.ZSTD: aiokafka_codec.zstd_encode,
}
AIOKAFKA_DECODE = {
    Codec.GZIP: aiokafka_codec.gzip_decode,
    Codec.SNAPPY: aiokafka_codec.snappy_decode,
    Codec.LZ4: aiokafka_codec.lz4_decode,
    Codec.ZSTD: aiokafka_codec.zstd_decode,
}


@given(st.sampled_from(Codec), st.binary(max_size=2000), st.integers(1, 200))
def test_what_was_compressed_decompresses_to_the_same(codec: Codec, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times


@pytest.mark.parametrize("codec", COMPRESSING)
def test_compressing_text_makes_it_smaller(codec: Codec) -> None:
    assert len(compress(codec, TEXT)) < len(TEXT) // 4


@pytest.mark.parametrize("codec", COMPRESSING)
def test_aiokafka_reads_ours_and_we_read_its(codec: Codec) -> None:
    assert AIOKAFKA_DECODE[codec](compress(codec, TEXT)) == TEXT
    assert decompress(codec, memoryview(bytes(AIOKAFKA_ENCODE[codec](TEXT)))) == TEXT


def test_the_standard_library_reads_our_gzip_and_we_read_its() -> None:
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT
    assert decompress(Codec.GZIP, gzip.compress(TEXT)) == TEXT


def test_bare_snappy_as_librdkafka_writes_it_is_read() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_is_written_in_blocks_behind_javas_header() -> None:
    framed = compress(Codec.SNAPPY, TEXT)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(framed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + first])) == TEXT[: 32 * 1024]


def test_snappy_versions_in_the_wrong_byte_order_are_read() -> None:
    framed = compress(Codec.SNAPPY, TEXT)
    assert decompress(Codec.SNAPPY, framed[:8] + b"\x01\x00\x00\x00\x01\x00\x00\x00" + framed[16:]) == TEXT


def test_lz4_blocks_are_independent_because_java_reads_no_others() -> None:
    flags = compress(Codec.LZ4, TEXT)[4]
    assert flags >> 6 == 1, "frame version"
    assert flags & 0x20, "block independence"


def test_lz4_with_linked_blocks_is_read_all_the_same() -> None:
    linked = bytes(cramjam.lz4.compress(TEXT))
    assert not linked[4] & 0x20
    assert decompress(Codec.LZ4, linked) == TEXT


def test_zstd_without_a_content_size_is_read() -> None:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(TEXT)
    frame = bytes(compressor.finish())
    # Neither a single segment nor a content size field: the size is nowhere in the frame (RFC 8878, 3.1.1.1.1).
    assert frame[4] & 0b1110_0000 == 0
    assert decompress(Codec.ZSTD, frame) == TEXT


@pytest.mark.parametrize("codec", COMPRESSING)
def test_output_far_larger_than_the_first_guess_is_read(codec: Codec) -> None:
    zeros = bytes(9 * MIB)
    assert decompress(codec, compress(codec, zeros)) == zeros


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, limit_bytes=len(TEXT)) == TEXT
    with pytest.raises(MessageTooLarge):
        decompress(codec, packed, limit_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_takes_no_more_memory_than_its_limit_allows(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            decompress(codec, bomb, limit_bytes=2 * MIB)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Snappy joins blocks, so a copy of the last one may stand beside the whole; gzip's first guess is the input's size.
    assert peak_bytes < 6 * MIB


@pytest.mark.parametrize("claimed", ["ffffffff0f", "80808080" + "01"])
def test_a_snappy_block_that_claims_gigabytes_is_refused_before_allocating(claimed: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords):
            decompress(Codec.SNAPPY, bytes.fromhex(claimed) + bytes(20))
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("damage", ["empty", "cut in half", "last byte lost", "noise"])
def test_damaged_input_is_corrupt(codec: Codec, damage: str) -> None:
    packed = compress(codec, TEXT)
    damaged = {
        "empty": b"",
        "cut in half": packed[: len(packed) // 2],
        "last byte lost": packed[:-1],
        "noise": b"\xff" * 64,
    }[damage]
    with pytest.raises(CorruptRecords):
        decompress(codec, damaged)


@pytest.mark.parametrize("stream", [b"\x82SNAPPY\x00", compress(Codec.SNAPPY, b"") + b"\x00\x00"])
def test_a_snappy_stream_cut_in_its_own_fields_is_corrupt(stream: bytes) -> None:
    with pytest.raises(CorruptRecords, match="ends inside"):
        decompress(Codec.SNAPPY, stream)


@pytest.mark.parametrize("length", [0, -1, -20, -(2**31), 2**31 - 1])
def test_a_snappy_block_of_impossible_length_is_corrupt(length: int) -> None:
    stream = compress(Codec.SNAPPY, b"") + length.to_bytes(4, "big", signed=True) + b"\x01\x00x"
    with pytest.raises(CorruptRecords, match="no length that fits"):
        decompress(Codec.SNAPPY, stream)


def test_a_snappy_block_shorter_than_it_claims_is_corrupt() -> None:
    with pytest.raises(CorruptRecords):
        decompress(Codec.SNAPPY, b"\x05\x00x")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named_in_the_refusal(codec: int) -> None:
    with pytest.raises(UnsupportedCompression, match=str(codec)):
        decompress(codec, b"")


@given(st.sampled_from(COMPRESSING), st.binary(max_size=300))
def test_noise_raises_nothing_but_our_own_errors(codec: Codec, noise: bytes) -> None:
    prefix = compress(codec, b"x" * 50)[:20]
    for data in (noise, prefix + noise):
        try:
            result = decompress(codec, data, limit_bytes=MIB)
        except PenstockError:
            continue
        assert len(result) <= MIB
