"""Seeded simulation: the cores of a cluster on virtual time, network and disks. One seed, one history."""
