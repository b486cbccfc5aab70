"""An error of a run is one line with the cause, whatever Spark puts around it."""

from __future__ import annotations

import pytest

from penstock.pipelines.run import _words_of

_JAVA = "\n\tat org.apache.spark.Foo(Foo.scala:1)\nCaused by: java.lang.Exception\n"
_PY4J = "An error occurred while calling o78.getFileSystem.\n: "
_PYTHON = 'Traceback (most recent call last):\n  File "steps.py", line 3, in f\n    return 1 / 0\n'


@pytest.mark.parametrize(
    ("told", "words", "code"),
    [
        (f"[STREAM_FAILED] Query terminated: Job aborted{_JAVA}", "[STREAM_FAILED] Query terminated: Job aborted", ""),
        (f"Job aborted.\n{_PYTHON}ZeroDivisionError: division by zero\n", "ZeroDivisionError: division by zero", ""),
        (f"x\n{_PYTHON}penstock.errors.NodesUnreachable: No node.\n{_JAVA}", "No node.", "nodes_unreachable"),
        (f"x\n{_PYTHON}penstock.errors.UnknownTopic: No topic t.\n", "No topic t.", "unknown_topic"),
        (
            f"{_PY4J}java.lang.RuntimeException: java.lang.NoClassFound: S3AFileSystem is missing{_JAVA}",
            "S3AFileSystem is missing",
            "",
        ),
        (f"{_PY4J}java.lang.Exception{_JAVA}", "java.lang.Exception", ""),
        ("[USER_RAISED_EXCEPTION] A row is wrong SQLSTATE: P0001\n", "A row is wrong", ""),
        ("", "RuntimeError", ""),
    ],
)
def test_the_cause_comes_first_and_alone(told: str, words: str, code: str) -> None:
    assert _words_of(RuntimeError(told)) == (words, code)
