"""Whatever bytes the files of a log hold, opening it neither crashes nor serves anything that is no batch."""

from __future__ import annotations

import logging

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.samples import DIRECTORY, append, fill, make_batch, open_log, read_all

from penstock.storage.inspect import dump_records, inspect_log
from penstock.testing.files import MemoryFiles

Patch = tuple[float, float, bytes]  # which file, where in it, and what is written over it

PATCHES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.binary(min_size=1, max_size=40)), max_size=6)


@settings(max_examples=150, deadline=None)
@given(patches=PATCHES, cut=st.floats(0, 1), is_closed=st.booleans(), tail=st.binary(max_size=200))
def test_a_log_of_patched_files_opens_and_goes_on(
    patches: list[Patch], cut: float, is_closed: bool, tail: bytes
) -> None:
    logging.disable(logging.CRITICAL)
    files = MemoryFiles()
    log = open_log(files)
    stored = set(fill(log, 40, producer_id=1))
    if is_closed:
        log.close()
    names = sorted(entry.name for entry in files.entries(DIRECTORY))
    for which, where, data in patches:
        overwrite(files, names[int(which * (len(names) - 1))], where, data)
    victim = files.open(DIRECTORY / names[int(cut * (len(names) - 1))])
    if cut < 0.5:
        victim.truncate(int(victim.size * cut))
    victim.write(tail)
    inspect_log(files, DIRECTORY, decodes_records=True)
    list(dump_records(files, DIRECTORY))
    log = open_log(files)
    served = read_all(log)
    assert [batch for batch in served if batch[16:] not in {known[16:] for known in stored}] == []
    offset = append(log, make_batch())
    log.close()
    assert log.end_offset == offset + 1
    assert len(read_all(open_log(files))) == len(served) + 1
    logging.disable(logging.NOTSET)


def overwrite(files: MemoryFiles, name: str, where: float, data: bytes) -> None:
    file = files.open(DIRECTORY / name)
    content = bytearray(file.read(0, file.size))
    at = int(where * len(content))
    content[at : at + len(data)] = data[: len(content) - at]
    file.truncate(0)
    file.write(content)
