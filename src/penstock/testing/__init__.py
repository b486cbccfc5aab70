"""Twins of the ports Penstock stands on, in memory and able to fail on demand. They are for your tests as for ours."""
