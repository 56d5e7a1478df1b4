"""Durable logs: one group-commit WAL per node, Kafka-format segments per partition.

Flow of an append: `log.PartitionLog.append` stamps a batch, keeps it in its in-memory tail and hands
the same bytes to `wal.Wal`; a commit round writes everything that gathered and syncs once; the log
then learns that it is durable. `flusher.Flusher` later writes the tail to segment files without
syncing, and a checkpoint syncs those files, notes how far they reach, and retires WAL files.
Flow of a read: the in-memory tail, else a segment file found through its sparse index.
Recovery (`recovery.py`) cuts each log back to the last checkpoint and replays the WAL on top.

Invariants: what the WAL reported committed survives kill -9 and power loss; batches of one log stand in
the WAL in offset order; a segment file is never needed beyond the checkpoint to recover.
All file access goes through `disk.Disk`; blocking work runs in the disk's I/O threads, never on the loop.
Not its job: who may append, replication, watermarks, what a record says.
"""
