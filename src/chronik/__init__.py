"""chronik: a Kafka-compatible, clustered, durable log broker."""

__version__ = "0.1.0"
