"""Whole nodes in simulation: the real broker on a virtual event loop, with a simulated network and simulated disks."""
