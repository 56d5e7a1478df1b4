"""A schema registry: schemas by subject and version, kept and served as Confluent's registry does.

Flow: the leader of partition 0 of `_schemas` is the registry. It replays the partition into a `RegistryState`
and appends to it; the other nodes hand their HTTP calls to it (`chronik.admin.schema_calls`).

    records.py      keys and values of `_schemas`, in Confluent's JSON
    state.py        what these records add up to: a pure `apply`
    operations.py   what a client asks, against a state
    shard.py        the partition in one leader epoch: writes in turn, applied once they are committed
    coordinator.py  finds the shard
    topic.py        a topic `_schemas` that is somebody else's
    judge.py        parses a schema and compares it with others: pure
    judging.py      judges here, or in a process where that is expensive
    checking.py     what a judgement needs: the text, what it refers to, the versions before it
    avro.py, avro_compat.py                     Avro: canonical text, compatibility
    json_schema.py, json_compat.py, json_text.py  the same for JSON Schema; JSON as schemas are written in it
    protobuf.py, proto_compat.py                the same for Protocol Buffers
    proto_parse.py, proto_print.py, proto_tokens.py  text of .proto files, both ways
    messages.py, errors.py, limits.py           between nodes; Confluent's error codes; bounds

Invariants: an id is given once, though its schema be deleted for good; only what is committed is answered;
whatever a stranger registers is bounded in size, depth, number, and in the steps that judging it may take.
Not its job: who may do what (the HTTP endpoints), encoding records.
"""
