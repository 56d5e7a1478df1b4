"""Transactions: writes to many partitions, and commits of offsets, that count together or not at all.

Flow: a handler asks the coordinator that leads the transactional id's partition of `__transaction_state`.
The coordinator asks the pure machine for the next record, appends it, and only then lets it count. When a
transaction ends, markers go to every partition it touched; when all are in, the outcome is recorded.

    transaction.py   one transactional id as a pure state machine
    records.py       the bytes of `__transaction_state`, in Kafka's own format
    producer_ids.py  ids that no other producer has
    shard.py         the ids of one partition: replay, timers, ending what is prepared
    coordinator.py   requests in, identities and outcomes out
    markers.py       the control batches that end a transaction in each partition
    verification.py  is a transactional write part of an open transaction?

Invariants: each transactional id has at most one record in flight, and other requests get a retriable error
until it is durable; a fenced epoch is never accepted again; a prepared outcome never changes.
Not its job: what a partition remembers of its producers (`storage.producer_state`), groups.
"""
