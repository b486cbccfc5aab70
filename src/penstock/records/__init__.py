"""Record batches: the one format in which messages travel, rest and replicate. Pure functions over bytes."""

from penstock.records.batch import (
    Record,
    TimestampedOffset,
    decode_records,
    encode_batch,
    filter_batch,
    find_timestamp,
    is_quick_to_decode,
    recompress_batch,
)
from penstock.records.compression import Codec, compress, decompress
from penstock.records.gap import encode_gap
from penstock.records.header import (
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    accept_batch,
    assign,
    check_batch,
    iter_batches,
    parse_header,
    peek_producer,
    peek_transaction,
    stamp_append_time,
)
from penstock.records.marker import Marker, encode_marker, read_marker
from penstock.records.partitioner import KeyHash, Partitioner, RoundRobin, key_hash, murmur2
from penstock.records.plain import decode_values, encode_values

__all__ = [
    "CONTROL_BIT",
    "HEADER",
    "HEADER_BYTES",
    "TRANSACTIONAL_BIT",
    "BatchHeader",
    "Codec",
    "KeyHash",
    "Marker",
    "Partitioner",
    "Record",
    "RoundRobin",
    "TimestampedOffset",
    "accept_batch",
    "assign",
    "check_batch",
    "compress",
    "decode_records",
    "decode_values",
    "decompress",
    "encode_batch",
    "encode_gap",
    "encode_marker",
    "encode_values",
    "filter_batch",
    "find_timestamp",
    "is_quick_to_decode",
    "iter_batches",
    "key_hash",
    "murmur2",
    "parse_header",
    "peek_producer",
    "peek_transaction",
    "read_marker",
    "recompress_batch",
    "stamp_append_time",
]
