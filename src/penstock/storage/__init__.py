"""The storage engine: partition logs as segments of record batches in files. Synchronous, without an event loop."""
