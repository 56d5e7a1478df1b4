"""What the cluster knows about itself: topics, partitions, brokers, configs.

Flow: `store.submit(command)` encodes a command and hands it to the metadata log. Once the log has committed
it, every node applies it to its own `ClusterState`, in log order; the events that come out go over the `bus`
to subscribers, and the submitter gets the outcome.

Invariants: the state is a function of the committed commands alone (no clock, no randomness, no local
settings), so all nodes agree; a command that does not fit is refused in the same way everywhere and changes
nothing; a replica list never gets shorter except by a reassignment that named the replicas to remove.

Not its job: deciding what to submit (handlers, controller), replicating the log (raft), storing it (storage).
"""
