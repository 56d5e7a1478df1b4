"""Consumer groups: who reads which partitions, and how far they got.

Flow: a handler asks the coordinator, the coordinator finds the group and calls one function of a pure
machine with the time as an argument; what comes back are records to append to `__consumer_offsets` and
answers to give once those are durable.

    classic_group.py      the classic group (JoinGroup, SyncGroup, ...): a table of states
    classic_member.py     one member of it
    classic_messages.py   what goes into it and what comes out of it
    roster.py             its members, their static ids, and the ids that have not joined yet
    consumer_group.py     the group of KIP-848 (ConsumerGroupHeartbeat): epochs and reconciliation
    consumer_member.py    one member of it
    consumer_messages.py  what goes into it and what comes out of it
    consumer_target.py    which partitions each of its members should have
    assignors.py          `uniform` and `range`, for consumer_target
    subscriptions.py      the topics that its members want and may see
    patterns.py           what members' regular expressions match, by RE2 and within limits
    matching.py           the cluster's topics with those matches
    offsets.py            committed offsets, transactional ones pending
    records.py            the bytes of `__consumer_offsets`, in Kafka's own formats
    shard.py              the groups of one partition: replay, timers, what the machines ask for
    growth_bytes.py       how much more a request makes a node remember
    committing.py         commits, fetches and expiry on a shard
    coordinator.py        requests in, results out

Invariants: in one generation (one assignment epoch) no partition belongs to two members; nothing is
answered that a crash could take back; the machines read no clock and draw no random numbers.
Not its job: reading or writing users' records, deciding who leads a partition.
"""
