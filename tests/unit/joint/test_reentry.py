"""A write that commits what was written before it: whoever hears of that asks at once, and is not forgotten."""

from __future__ import annotations

from tests.unit.joint.test_model import JointMachine


def test_a_question_asked_while_an_end_is_being_written_is_answered() -> None:
    story = JointMachine()
    story.start()
    story.open(name="t1")
    story.disk(how="slow")
    story.abort(name="t1")
    story.abort(name="t1")  # its answer comes while the end is written, and then the result is asked for
    story.teardown()
    assert not story.unanswered
