"""Kafka's wire format, without I/O.

Flow: bytes from a connection are cut into frames, `api` reads the request header, then either a hot codec
(Produce, Fetch) or `schema` (everything else) turns the body into values; replies go the same way back.

Invariants: malformed bytes raise PeerError and nothing else, and cost memory in proportion to their own size.

Not its job: deciding which versions a node offers, and what a request means.
"""
