"""The Kafka door: any Kafka client, unchanged."""
