"""Functions that work off a queue. Start a broker first: ./dev run

Run it as it is, or as a service: penstock worker client_worker:app
"""

from __future__ import annotations

import sys
import threading

import penstock

app = penstock.App(*sys.argv[1:] if __name__ == "__main__" else ())
lock = threading.Lock()
handled: list[str] = []

PARCELS = 20


@app.worker("parcels-to-send", group="couriers", concurrency=4)
def deliver(message: penstock.QueueMessage) -> None:
    """Returning acks the message. Raising has it delivered again, later each time, and then to the dead letters.

    However long this takes, the message stays ours: its lease is renewed meanwhile.
    """
    parcel = message.json()
    if parcel["address"] is None:
        raise penstock.Reject("no address")  # trying again would not help
    if parcel["number"] == 7 and message.delivery_count == 1:
        raise penstock.Retry(0.5, "nobody was at home")
    with lock:
        handled.append(parcel["address"])
        print(f"delivered {parcel['number']} to {parcel['address']}")
        if len(handled) == PARCELS - 1:
            app.stop()  # in good order: what runs is finished, what has not begun is given back


def main() -> None:
    with penstock.Client(*app.urls) as client:
        parcels = [{"number": number, "address": f"{number} Mill Lane"} for number in range(PARCELS - 1)]
        client.publish_many("parcels-to-send", [*parcels, {"number": PARCELS, "address": None}])
    app.run()
    print(f"delivered: {len(handled)}")


if __name__ == "__main__":
    main()
