"""Orders out of a topic, those that are large as a table and back into a topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

spark = SparkSession.active()
servers = spark.conf.get("penstock.servers")

dp.create_sink("large_orders_topic", "penstock", {"servers": servers, "topic": "large-orders"})


@dp.table
def orders() -> DataFrame:
    return (
        spark.readStream.format("penstock")
        .options(servers=servers, topics="orders", schema="id STRING, amount DOUBLE", columns="timestamp,value")
        .load()
        .select("value.*", "timestamp")
    )


@dp.table
def large_orders() -> DataFrame:
    return spark.readStream.table("orders").where("amount >= 100")


@dp.append_flow(target="large_orders_topic")
def large_orders_out() -> DataFrame:
    rows = spark.readStream.table("large_orders")
    return rows.select(sql.col("id").alias("key"), sql.to_json(sql.struct("id", "amount")).alias("value"))
