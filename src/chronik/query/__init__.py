"""Search and SQL over topics, in a process of its own.

Flow: the node keeps a `gateway`, which starts the child (`python -m chronik.query.child`) when a topic is
searchable or a question comes, tells it which partitions this node leads, and passes questions on. The child
reads the committed log as any consumer does, through the Kafka port: the `indexer` keeps what came in memory
(`tail`) and feeds a tantivy index per topic when the node has time for it (`pacing`), the `sql` engine keeps
columns of the topics that were asked for and runs DuckDB over them. A search (`searching`) covers the index
and the tail: records of the tail that its query may find (`conditions`) are indexed for that search alone.

Invariants: nothing the child does (crash, lock, full disk, runaway query) reaches a produce request; an
index says how far it is by what it holds, so it resumes exactly where it stopped; a search sees each record
once, in the index or in the tail; a damaged index is thrown away and built again, and until then its
partitions count as missing, not as empty.

Not its job: spreading a question over the nodes (`chronik.admin` does), and keeping records (the log does:
everything here can be deleted).
"""
