"""Gaps: control batches that stand for a producer's batch whose records are all kept elsewhere.

A gap has the offsets, the sequence numbers and the producer of the batch it stands for, so that the partition goes on
to recognise what is sent twice. It holds one control record, at its last offset. A batch without any record would do
for most consumers, but librdkafka takes a response without a record for a sign that its fetch size is too small,
doubles that, and reports MSG_SIZE_TOO_LARGE in the end; a control record is stepped over by all of them.
Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.records.batch import assemble_batch
from penstock.records.header import CONTROL_BIT, BatchHeader
from penstock.records.varint import varlong_bytes

_KEY: Final = Struct(">hh").pack(0, 0x5053)  # version, and a type that no client gives a meaning to
_VALUE: Final = Struct(">hi").pack(0, -1)  # as markers have it: some clients read it of every control record
_NO_HEADERS: Final = b"\0"


def encode_gap(header: BatchHeader) -> bytearray:
    """Make the batch that stands for the one with this header."""
    delta = header.last_offset_delta
    record = b"\0\0" + varlong_bytes(delta)  # attributes, timestamp, offset
    for part in (_KEY, _VALUE):
        record += varlong_bytes(len(part)) + part
    record += _NO_HEADERS
    gap = header._replace(attributes=CONTROL_BIT, count=1, base_timestamp=header.max_timestamp)
    return assemble_batch(gap, (varlong_bytes(len(record)), record))
