"""Penstock: one replicated log, read three ways: as a stream, as a work queue, as a table."""

__version__ = "0.1.0"
