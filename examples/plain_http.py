"""Publish and read over REST with nothing but the standard library. Start a broker first: ./dev run"""

from __future__ import annotations

import json
import sys
from urllib.request import Request, urlopen


def call(url: str, body: object = None) -> dict[str, object]:
    """One request: POST where there is a body, GET where there is none."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"content-type": "application/json"})) as response:
        answer: dict[str, object] = json.load(response)
        return answer


def main(url: str = "http://127.0.0.1:8080") -> None:
    receipt = call(f"{url}/v1/topics/readings/publish", {"key": "sensor-7", "value": {"celsius": 21.5}})
    print("stored:", receipt)
    place = f"partition={receipt['partition']}&offset={receipt['offset']}"
    for message in call(f"{url}/v1/topics/readings/messages?{place}")["messages"]:  # type: ignore[attr-defined]
        print("read back:", message["value"])


if __name__ == "__main__":
    main(*sys.argv[1:])
