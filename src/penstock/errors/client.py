"""What only a client can meet, on its own side of the wire."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class ClientError(PenstockError):
    """Something went wrong between a client and the cluster."""

    code = "client_error"


class NodesUnreachable(ClientError):
    """None of the nodes that the client knows could be reached."""

    code = "nodes_unreachable"
    retriable = True


class UnexpectedAnswer(ClientError):
    """Whoever answered does not speak as a Penstock node does; check the URL."""

    code = "unexpected_answer"


class WrongPort(ClientError):
    """The address is of another door of a node: its Kafka, gRPC or internal port. Give the HTTP address."""

    code = "wrong_port"


class ClientClosed(ClientError):
    """The client was closed; make a new one."""

    code = "client_closed"


class LeaseLost(ClientError):
    """The message was no longer this consumer's: its lease was over, or it has been dealt with before."""

    code = "lease_lost"


class DataLost(ClientError):
    """Messages that a reader still had to read are gone: deleted, damaged, or their topic is another one now."""

    code = "data_lost"


class UnreadableValue(ClientError):
    """A message's value is not what its reader was told to expect."""

    code = "unreadable_value"
