"""The board: the last report of every pipeline, kept by the leader of the one partition of ``__pipelines``.

A runner reports every few seconds, and hears in the answer whether a user wants it to stop. A run that was replaced
by a later one of the same pipeline is refused, so that two of them are noticed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from penstock.errors import InvalidRequest, PipelineNotFound, PipelineReplaced
from penstock.features.pipelines import records
from penstock.features.pipelines.records import PipelineChange, Report, RunState
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.journal import PartitionJournal
from penstock.machines.messages import Request
from penstock.machines.ports import Ports
from penstock.machines.shard import PromptMachine, Shard
from penstock.model import PIPELINES_TOPIC
from penstock.partitions.partition import Partition

BOARD: Final = "pipelines"  # there is one, so all of it can be listed at one node
PARTITIONS: Final = 1

_PIPELINES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Tell(Request[Report]):
    """Here is how it is with a pipeline now."""

    report: Report


@dataclass(frozen=True, slots=True)
class AskToStop(Request[Report]):
    name: str


@dataclass(frozen=True, slots=True)
class Forget(Request[None]):
    name: str


class Board(PromptMachine[PipelineChange]):
    """The reports of all pipelines."""

    id = BOARD

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}

    @property
    def is_forgettable(self) -> bool:
        return not self.reports

    def find(self, name: str) -> Report:
        report = self.reports.get(name)
        if report is None:
            raise PipelineNotFound(
                f"No pipeline {name!r} has reported here yet; `penstock pipeline run FILE` runs one."
            )
        return report

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _tell(self, request: Tell, now_ms: int) -> tuple[list[PipelineChange], Report]:
        told = request.report
        known = self.reports.get(told.name)
        if known is None and len(self.reports) >= _PIPELINES_MAX:
            raise InvalidRequest(f"There are {_PIPELINES_MAX} pipelines already: delete what is over, and try again.")
        if known is not None and known.run != told.run and told.state is not RunState.STARTING:
            raise PipelineReplaced(
                f"Pipeline {told.name!r} was started again as run {known.run}: this run has to end, since both write "
                "to the same sinks and checkpoint."
            )
        is_asked = known is not None and known.run == told.run and known.stop
        ended_ms = now_ms if told.state.is_over else None
        report = msgspec.structs.replace(told, reported_ms=now_ms, ended_ms=ended_ms, stop=is_asked)
        return [PipelineChange(report.name, report)], report

    def _stop(self, request: AskToStop, _now_ms: int) -> tuple[list[PipelineChange], Report]:
        report = self.find(request.name)
        if report.state.is_over or report.stop:
            return [], report
        report = msgspec.structs.replace(report, stop=True)
        return [PipelineChange(report.name, report)], report

    def _forget(self, request: Forget, _now_ms: int) -> tuple[list[PipelineChange], None]:
        self.find(request.name)
        return [PipelineChange(request.name, None)], None

    def apply(self, change: PipelineChange, at_ms: int, now_ms: int = 0) -> None:  # noqa: ARG002
        if change.report is None:
            self.reports.pop(change.name, None)
        else:
            self.reports[change.name] = change.report

    rules: ClassVar = {Tell: _tell, AskToStop: _stop, Forget: _forget}


class BoardShard(Shard[Board, PipelineChange]):
    def make(self, name: str) -> Board:  # noqa: ARG002 - there is one
        return Board()

    def name_of(self, change: PipelineChange) -> str:  # noqa: ARG002
        return BOARD


class Pipelines(NamedCoordinator[BoardShard]):
    """The board, where this node leads it; `operations.asking` finds the node that does."""

    topic = PIPELINES_TOPIC
    what = "pipelines"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports.leaders, ports.time, ports.supervision)
        self._ports = ports

    def make_shard(self, partition: Partition) -> BoardShard:
        return BoardShard(
            PartitionJournal(partition, records, syncs=self._ports.syncs_before_ack),
            self._clock.now_ms,
            self._clock.now_ms,
            asyncio.get_running_loop().call_soon,
        )

    async def tell(self, report: Report) -> Report:
        return await self.ask(BOARD, Tell(report))

    async def stop_run(self, name: str) -> Report:
        return await self.ask(BOARD, AskToStop(name))

    async def forget(self, name: str) -> None:
        await self.ask(BOARD, Forget(name))

    async def reports(self) -> list[Report]:
        """Of every pipeline, by name."""
        if PIPELINES_TOPIC not in self._ports.metadata.topics:
            return []  # the first report creates it
        await self.settled(BOARD)
        board = self.shard(BOARD).machines.get(BOARD)
        return [] if board is None else sorted(board.reports.values(), key=lambda each: each.name)

    def reports_here(self) -> list[Report]:
        """What this node keeps, for its metrics."""
        boards = [shard.machines.get(BOARD) for shard in self._shards.values() if shard.is_ready]
        return [report for board in boards if board is not None for report in board.reports.values()]

    async def find(self, name: str) -> Report:
        for report in await self.reports():
            if report.name == name:
                return report
        return Board().find(name)
