"""Doors: each translates one protocol to the same operations."""
