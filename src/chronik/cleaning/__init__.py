"""Retention and compaction: when which partition of this node is cleaned.

    cleaner.py    rounds over all partitions, retention, a failure that repeats is logged once
    compactor.py  which logs are worth compacting, and compaction in short steps at a bounded pace

Invariants: nothing at or above the high watermark is touched; each replica cleans its own log.
Not its job: how a segment is rewritten or dropped (storage).
"""
