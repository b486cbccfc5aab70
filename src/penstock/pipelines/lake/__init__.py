"""A lake of messages: Parquet files by topic, date and hour, and a catalog that says which of them count.

Format: docs/formats/lake.md.
"""
