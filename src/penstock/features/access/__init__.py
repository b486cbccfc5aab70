"""Access at a node: who a caller is, and whether it may do what it asks for."""
