"""Joint transactions: several writers publish into one transaction, and one call decides for all of them."""
