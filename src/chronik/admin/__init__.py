"""HTTP for people and tools: health, metrics, administration, the console, and the doors to search and SQL.

Flow: `server` owns the socket and the limits of a connection; `app` guards a request (host, origin, key,
size, time) and hands it to an endpoint; an endpoint (`routes/<noun>.py`) takes an `HttpCall` and returns a
value; values become JSON in one place, and so do errors. Endpoints are listed in `routes`, and the OpenAPI
description, the readable page and docs/HTTP.md are made from that list.

Invariants: nothing here is heavy or blocks the loop; a request is bounded in bytes and in time; every failure
is JSON with a code and a sentence; any node answers for the whole cluster.

Not its job: deciding anything about the cluster (commands go to the metadata store, as from Kafka clients),
and indexing or querying (a child process, `chronik.query`).
"""
