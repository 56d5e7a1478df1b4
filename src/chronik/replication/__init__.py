"""Partitions as replicas: who leads, what is acknowledged, how far readers may see.

A record's way: a handler finds its `Partition` and appends; the log puts the batch into the WAL, the feed
sends it to the followers' nodes, where it goes the same way. What comes back ends in the `Replica`: the WAL's
report, the followers' acknowledgements. They move the high watermark, which answers producers and fetches.

    partition.py, partitions.py  what requests do: append, wait, read, delete; all partitions of the node
    replica.py                   role, progress, watermark: the state that reports move
    manager.py                   keeps partitions in step with the metadata
    feed.py, cursor.py           leader: sends batches and watermarks; where each follower's feed stands
    follower_reports.py          leader: what followers report
    progress.py                  leader: what is known of each follower
    isr.py                       leader: who is in sync, and how a change is decided
    follower.py, ack_sender.py   follower: what the leader sends; acknowledgements back to it
    watermark_rule.py            pure: how far the watermark goes
    truncation_point.py          pure: where two logs part
    remote.py                    what a partition asks of its log in an object store
    repair.py                    a damaged replica is copied again from one that is in sync
    context.py                   what all replicas of a node share
    admission.py                 what a producer's batch has to be like
    waiters.py, propagation.py   who waits for an offset; how soon followers know a watermark
    watermark_events.py          moves of watermarks as events, for subscribers
    writers.py                   pure: which connections wrote last, for people who ask

Invariants: nobody but a replica writes its state; the watermark never goes back; nothing behind it is shown
to a reader; acks=all is answered only below it; a node that is not the leader of the current epoch takes no
appends.
Not its job: how bytes reach the disk (storage), who should lead (cluster), what a client asked (server).
"""
