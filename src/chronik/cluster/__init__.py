"""Decisions about the cluster as a whole: who holds which partition, who leads, who belongs.

Flow: the controller (the Raft leader) watches brokers, decides here, and submits metadata commands.

Invariants: broker ids come from the registered brokers, never from a constant; decisions are pure functions.

Not its job: carrying out a decision (replication) or agreeing on it (raft).
"""
