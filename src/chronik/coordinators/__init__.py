"""What the group coordinator and the transaction coordinator have in common: their log.

Flow: a coordinator leads shards of an internal topic. A shard is the state of one partition, replayed from
its records; a change is appended to the partition's journal and counts once it is committed.

    journal.py      one partition of an internal topic: append, wait until committed, replay
    shards.py       the partitions of the topic that this node leads now, loaded and dropped as leaders change
    coordinator.py  what both coordinators do alike: find a shard by key, look for what has expired

Invariants: a shard belongs to one leader epoch; it opens when all that was replayed is committed.
Not its job: what the records mean (groups, transactions).
"""
