"""Tables written to topics: from the columns of a row to the commit of a batch."""
