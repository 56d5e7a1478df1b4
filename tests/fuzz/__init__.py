"""Hostile input through every door of a real node, while a well-behaved client works beside it.

    inputs.py         one input: bytes for a port, on one connection or several; kept and read again as a file
    sending.py        sends an input and says what was wrong with the answer
    values.py         values and mutations that the generators share
    kafka_door.py     every API and version: hostile fields, damaged frames, interleaved connections
    records_door.py   batches with right checksums and hostile contents, then every reader of them
    http_door.py      every endpoint, and requests that break HTTP
    typed_bodies.py   values by the types that they are decoded to, so that they pass validation
    queries.py        SQL and search queries by grammar
    peers_door.py     frames on the WAL and Raft ports, before and after the handshake
    readers_door.py   the scanner, Avro, archives, indexes and pipeline files, in a process of their own
    pipeline_files.py pipeline files by grammar
    file_readers.py   readers of files and of what nodes say to each other, in the same process
    hostile_broker.py a broker that answers our own client with nonsense
    telemetry_door.py metrics that clients push
    tiered_door.py    objects that are damaged in the store while clients read
    logins_door.py    logins on a SASL listener
    beside.py         the well-behaved client and its ledger
    watching.py       `/health`, memory, the log
    campaign.py       rounds: one door each, then a restart that must recover what was acknowledged

A round's seed decides all of its inputs. A finding names the seed and a file with the inputs, which
`python -m tests.fuzz --replay FILE` sends again.
Not its job: what peers that know the cluster's secret say on purpose; they are believed.
"""
