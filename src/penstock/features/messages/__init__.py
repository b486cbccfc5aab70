"""Messages published and read, for the doors that speak of messages and not of batches."""
