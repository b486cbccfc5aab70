"""Quotas: how much a client may publish, read and ask for in a second."""
