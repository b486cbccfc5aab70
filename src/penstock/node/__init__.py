"""A node: the composition root, where settings become a running broker with its doors."""
