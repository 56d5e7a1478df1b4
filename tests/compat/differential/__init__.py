"""The same requests to Apache Kafka and to a node, the answers compared field by field.

`cases` has the requests, `world` what they meet on either side, `compare` what counts as the same answer,
`differences.toml` each difference that is meant, with its reason.
"""
