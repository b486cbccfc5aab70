"""A member of a consumer group that speaks HTTP, as a process of its own. Its diary is that of `group_member`.

It does what the reference tells clients to do: it polls with the number of the last answer that it saw, commits what it
has written down, and joins again when it is told to.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.group_member import MESSAGES_AT_ONCE, SESSION_MS, Diary, Stop

POLL_MS = 1_000
PAUSE_S = 0.1


class RefusedError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.code = code


class RestMember:
    def __init__(self, options: argparse.Namespace, diary: Diary) -> None:
        self._node = urlsplit(options.http).netloc
        self._path = f"/v1/groups/{options.group}"
        self._topic: str = options.topic
        self._diary = diary
        self._connection = http.client.HTTPConnection(self._node, timeout=60)
        self._id: str | None = None
        self._is_in = False
        self._held: set[int] = set()
        self._last_poll = 0

    def call(self, verb: str, **body: object) -> Any:
        try:
            self._connection.request("POST", f"{self._path}/{verb}", json.dumps(body))
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = http.client.HTTPConnection(self._node, timeout=60)
            raise
        answer = json.loads(data) if data else {}
        if response.status >= 400:
            raise RefusedError(response.status, answer["code"])
        return answer

    def _note(self, partitions: list[dict[str, Any]]) -> None:
        held = {place["partition"] for place in partitions}
        if self._held - held:
            self._diary.write("revoked", *sorted(self._held - held))
        if held - self._held:
            self._diary.write("assigned", *sorted(held - self._held))
        self._held = held

    def step(self) -> None:
        """Join if need be, poll once, commit what came."""
        if not self._is_in:
            again = {} if self._id is None else {"member_id": self._id}
            joined = self.call("join", topics=[self._topic], session_timeout_ms=SESSION_MS, wait_ms=5_000, **again)
            self._id, self._is_in, self._last_poll = joined["member_id"], True, 0
            self._note(joined["partitions"])
        page = self.call(
            "poll", member_id=self._id, max_messages=MESSAGES_AT_ONCE, wait_ms=POLL_MS, last_poll=self._last_poll
        )
        self._last_poll = page["poll"]
        self._note(page["partitions"])
        ends = self._diary.got((each["partition"], each["offset"], each["value"].encode()) for each in page["messages"])
        if ends:
            self.call("commit", member_id=self._id, generation=page["generation"], last_poll=self._last_poll)
            self._diary.committed(ends)

    def recover(self, error: Exception) -> None:
        """Find out what to do next after something went wrong."""
        if isinstance(error, RefusedError) and error.code == "unknown_member":
            if not self._is_in:
                self._id = None  # the group does not know it either
            self._is_in = False
            self._note([])
        else:
            time.sleep(PAUSE_S)

    def leave(self) -> None:
        self.call("leave", member_id=self._id)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--http", "--group", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--diary", type=Path, required=True)
    options = parser.parse_args()
    stop = Stop()
    member = RestMember(options, Diary(options.diary))
    while not stop.is_set:
        try:
            member.step()
        except (RefusedError, OSError, http.client.HTTPException) as error:
            member.recover(error)
    member.leave()


if __name__ == "__main__":
    main()
