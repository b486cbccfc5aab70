"""Values by a schema: what users call it, what it checks, and the columns it gives."""
