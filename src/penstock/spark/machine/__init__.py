"""What Spark needs on the machine of a session: a Java, and the Python of its workers."""
