"""Hosted members: consumers that live in the broker on behalf of clients who speak something simpler than Kafka."""
