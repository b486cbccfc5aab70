"""What the pipelines of a cluster say about themselves. They run elsewhere, on Spark; here everybody can look."""
