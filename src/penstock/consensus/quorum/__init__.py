"""The quorum at work: Raft with a disk, a network and a clock, and the controller that its leader is."""
