"""Topics read as tables: from the options of a query to the rows of one task."""
