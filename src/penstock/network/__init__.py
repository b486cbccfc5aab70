"""How nodes talk to each other: methods with typed requests and replies, over length-prefixed frames."""
