"""Record batches of the log as Arrow columns, many records at once."""
