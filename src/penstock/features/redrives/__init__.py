"""Redrives: dead letters sent back to where they came from, with a ledger of what was done."""
