"""Real Kafka clients and tools against a real node; `--broker kafka` runs the same on Apache Kafka."""
