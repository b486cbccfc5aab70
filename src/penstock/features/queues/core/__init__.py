"""The deliveries of one group in one partition, decided without clock, socket or log."""
