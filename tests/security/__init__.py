"""Closed listeners, by the clients and tools that people use."""
