"""What of the distribution may be missing: the parts that come with an extra, and the line that installs them.

`pip install penstock-mq` brings the client and the command line. A node needs the extra ``server``, and Spark's source
and pipelines need ``spark`` (decision 25). Code that needs an extra imports its parts within `needs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DISTRIBUTION: Final = "penstock-mq"


class MissingExtra(ImportError):
    """A part of Penstock is asked for that this installation has not got; the message has the line that adds it."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Have an import that fails for want of an extra say so. ``what`` begins the sentence, as in "A node"."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "penstock").partition(".")[0] == "penstock":
            raise  # one of our own: a bug, not a choice of what to install
        raise MissingExtra(
            f"{what} needs parts that are not installed here ({error.name}). Install them: {install_line(extra)}"
        ) from error


def install_line(*extras: str) -> str:
    """The command that adds extras to this installation, from where it came: an index, a wheel or a clone."""
    wanted = f"{DISTRIBUTION}[{','.join(extras)}]"
    origin = _origin()
    return f"pip install '{wanted}'" if origin is None else f"pip install '{wanted} @ {origin}'"


def _origin() -> str | None:
    """Where this was installed from if that was no index, as PEP 610 has installers note it."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution  # 20 ms, for an error message

    try:
        noted = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    return None if noted is None else str(json.loads(noted)["url"])
