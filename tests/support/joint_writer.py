"""A writer of a joint transaction as a process of its own: it numbers its calls, and repeats each until it is answered.

    python joint_writer.py URL TOPIC TRANSACTION WRITER CALLS

Each call has ten messages, ``WRITER/NUMBER``, with and without keys. The last line of output is ``done``; a refusal
that no repetition can help ends the process with code 1.
"""

from __future__ import annotations

import sys
import time

import httpx

MESSAGES = 10
_PATIENCE_S = 60.0


def main(url: str, topic: str, transaction: str, writer: str, calls: int) -> int:
    with httpx.Client(base_url=url, timeout=5) as client:
        for call in range(calls):
            first = call * MESSAGES
            messages = [
                {"value": f"{writer}/{number}", "key": str(number) if number % 2 else None}
                for number in range(first, first + MESSAGES)
            ]
            sent = {
                "Penstock-Transaction": transaction,
                "Penstock-Writer": writer,
                "Penstock-Sequence": str(first),
            }
            deadline = time.monotonic() + _PATIENCE_S
            while not _is_sent(client, topic, messages, sent):
                if time.monotonic() > deadline:
                    print("gave up", flush=True)
                    return 1
                time.sleep(0.05)
            print(first + MESSAGES, flush=True)
    print("done", flush=True)
    return 0


def _is_sent(client: httpx.Client, topic: str, messages: list[dict[str, str | None]], sent: dict[str, str]) -> bool:
    try:
        answer = client.post(f"/v1/topics/{topic}/batch", json={"messages": messages}, headers=sent)
    except httpx.TransportError:
        return False  # perhaps it was stored, perhaps not; the number tells the node
    if answer.status_code == 200:
        return True
    if answer.status_code >= 500:
        return False
    print(answer.text, flush=True)
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5], int(sys.argv[5])))
