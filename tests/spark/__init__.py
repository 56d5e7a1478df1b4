"""Real Spark against real nodes."""
