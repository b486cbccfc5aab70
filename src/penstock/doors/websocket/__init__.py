"""The WebSocket at ``/v1/ws``, on HTTP's door: frames, sessions that outlive their sockets, and subscriptions."""
