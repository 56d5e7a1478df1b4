"""A schema registry: schemas by subject and version, kept and served as Confluent's registry does.

Flow: the leader of partition 0 of `_schemas` is the registry. It replays the partition into a `RegistryState`
and appends to it; the other nodes hand their HTTP calls to it (`chronik.admin.schema_calls`).

    records.py      keys and values of `_schemas`, in Confluent's JSON
    state.py        what these records add up to: a pure `apply`
    operations.py   what a client asks, against a state
    shard.py        the partition in one leader epoch: writes in turn, applied once they are committed
    coordinator.py  finds the shard
    judge.py        parses a schema and compares it with others: pure; judging.py does it here or in a process
    avro*, json_*, proto*: each type's parsing, canonical text and compatibility

Invariants: an id is given once, though its schema be deleted for good; only what is committed is answered;
whatever a stranger registers is bounded in size, depth, number, and in the steps that judging it may take.
Not its job: who may do what (the HTTP endpoints), encoding records.
"""
