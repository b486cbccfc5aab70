"""Chaos: a real cluster under real faults, real clients at work meanwhile, and a checker that gives the verdict.

    ./dev chaos                     ten minutes, every fault that this machine allows
    ./dev chaos failover            kill -9 of a leader until the next acknowledged write, fifty times
    ./dev chaos --secured           the same with TLS everywhere, logins and encryption at rest
    ./dev chaos rolling             a rolling restart under load; failed operations of clients are counted

As root every node lives in a network namespace and on a disk image of its own, so that the network can be cut and the
power too; otherwise nodes are plain processes, and the faults that need more are left out, aloud.
"""
