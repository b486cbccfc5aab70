"""A streaming job as a process of its own: topic to topic through a shuffle, until it is killed.

    python spark_driver.py URL SOURCE TARGET CHECKPOINT

It prints a line for each batch that is done. Nothing here knows of the kills: what a killed job leaves behind is the
checkpoint and whatever the broker has.
"""

from __future__ import annotations

import sys
import time

from penstock.spark import session

ROWS_A_BATCH = 300


def main(url: str, source: str, target: str, checkpoint: str) -> None:
    spark = session("killed", "local[2,3]", testing=True)
    spark.sparkContext.setLogLevel("ERROR")
    read = spark.readStream.format("penstock").option("servers", url)
    read = read.option("maxRecordsPerTrigger", ROWS_A_BATCH)
    rows = read.option("timeout", "300").load(source).selectExpr("key", "value").repartition(2, "value")
    writer = rows.writeStream.format("penstock").option("servers", url).option("topic", target)
    writer = writer.option("timeout", "300").option("stagingTimeout", "60").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    print("started", flush=True)
    last = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last and progress["numInputRows"]:
            last = progress["batchId"]
            print("batch", last, flush=True)
        time.sleep(0.05)
    print("failed", query.exception(), flush=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:5])
