"""Partitions as replicas: who leads, what is acknowledged, how far readers may see.

Flow: a handler finds its `Partition` in the `ReplicaManager`, appends and leaves a callback; the log reports
durability, followers report theirs, `Partition` moves the high watermark in one function, and that answers
waiting producers and wakes waiting fetches.

Invariants: the watermark never goes back; nothing behind it is shown to a reader; acks=all is answered only
below it; a node that is not the leader of the current epoch takes no appends.
Not its job: how bytes reach the disk (storage), who should lead (cluster), what a client asked (server).
"""
