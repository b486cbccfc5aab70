"""Whether a copy has what it had when the node went down, or may have lost some of it (docs/decisions/0011).

A write that a power cut tore and damage to batches that were acknowledged cannot be told apart. So every copy that was
cut, or is good only up to less than it once knew to be committed, is doubtful, and the controller is told.

A batch whose leader epoch is damaged is damage like any other where there are more copies, and is dated anew where
there are none: its records are good (penstock.storage.epoch_repair).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from penstock.consensus.commands import DoubtedReplica
from penstock.errors import ResourcesExhausted
from penstock.model import TopicPartition
from penstock.storage.epoch_repair import redate
from penstock.storage.log import Log
from penstock.storage.ranges import Hole
from penstock.storage.state_files import note_cut

log = logging.getLogger(__name__)


def cut_torn(name: TopicPartition, opened: Log, high_watermark: int) -> None:
    """Cut a log where it is damaged, if nothing behind that is known to be committed.

    To keep what lies behind would be to claim that all of it is here. Records that are good, of a batch that is only
    misdated or misplaced, may be the only ones there are: they stay until this copy is known not to count.
    """
    damage = opened.first_damage()
    if damage is not None and damage >= high_watermark and not is_misdated(opened):
        log.warning("%s is cut back from %d to %d, where it is torn or damaged.", name, opened.end_offset, damage)
        note_cut(opened.files, opened.directory)
        opened.truncate(damage)
        opened.is_doubtful = True


def try_to_change(opened: Log, change: Callable[[], None]) -> bool:
    """Cut a log or begin it anew, in any thread; whether there was room for that on the disk.

    If not, the log becomes what a restart would make of what is there, and it can be tried again. Not so where damage
    is known: a log that is read anew counts as sound.
    """
    try:
        change()
    except ResourcesExhausted:
        if is_damaged(opened):
            raise
        opened.on_refused(opened)
        opened.read_anew()
        return False
    return True


def is_damaged(opened: Log) -> bool:
    """Whether anything is known to be wrong with what is there. Costs nothing where nothing ever was."""
    return opened.opened.has_damage and any(segment.holes or segment.misdated for segment in opened.segments)


def is_misdated(opened: Log) -> bool:
    """Whether leader epochs are known to be damaged, so that no follower can be told where histories part."""
    return opened.opened.has_damage and any(segment.misdated for segment in opened.segments)


def mark_future_epochs(name: TopicPartition, opened: Log, leader_epoch: int) -> None:
    """Take batches of epochs that have not begun yet for what they are. ``leader_epoch`` has to be what is true now."""
    start = opened.epochs.start_after(leader_epoch)
    if start is None:
        return
    log.error(
        "%s has batches of epoch %d from offset %d on, but is led in epoch %d: the epoch is damaged.",
        name,
        opened.epochs.latest,
        start,
        leader_epoch,
    )
    opened.epochs.cut(start)
    for segment in opened.segments:
        if segment.next_offset > start:
            segment.note_misdated(Hole(segment.locate(max(start, segment.base_offset)), segment.size))


def restamp_epochs(opened: Log) -> None:
    """Give the only copy leader epochs in place of damaged ones. Runs in any thread."""
    for segment in opened.segments:
        redate(segment, opened.epochs)


def doubt_of(name: TopicPartition, topic_id: UUID, opened: Log, high_watermark: int) -> DoubtedReplica | None:
    """What to tell of a log that may lack something; None if it is sound."""
    damage = opened.first_damage()
    end = opened.end_offset if damage is None else damage
    if high_watermark > end:
        log.error(
            "%s is good up to offset %d, but was committed up to %d: records are lost here. They are copied again "
            "from a replica that has them.",
            name,
            end,
            high_watermark,
        )
    elif damage is None and not opened.is_doubtful:
        return None
    epochs = [start.epoch for start in opened.epochs.items() if start.start_offset < end]
    return DoubtedReplica(topic_id=topic_id, partition=name.partition, last_epoch=epochs[-1] if epochs else -1, end=end)
