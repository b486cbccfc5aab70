"""Raft without input and output: a core that is told what happened and says what is to be done."""
