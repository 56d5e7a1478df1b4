"""Measurements: chronik beside Apache Kafka on one machine, and costs that must not grow with partitions."""
