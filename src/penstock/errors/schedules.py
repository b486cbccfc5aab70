"""What work on schedules is refused for."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class ScheduleNotFound(PenstockError):
    """There is no such schedule: it never was, it was cancelled, or its message is in its topic already."""

    code = "schedule_not_found"


class ScheduleExists(PenstockError):
    """The id stands for another schedule: take another id, or change or cancel that one."""

    code = "schedule_exists"


class ScheduleBeingFired(PenstockError):
    """The message of this schedule is on its way into its topic at this moment."""

    code = "schedule_being_fired"
