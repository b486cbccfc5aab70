"""Penstock next to Apache Kafka, on the same machine, in the same run: `./dev bench`, docs/reference/benchmark.md."""
