"""What the pipeline's jobs publish and nodes read: archives of topics, and search indexes of them.

Flow: `chronik.spark.jobs` writes files and commits them by one rename; a node's query process reads what is
committed, and takes from its own log whatever lies behind it. Here is what both sides must agree on: the
steps of an archive, the manifest and the documents of an index.

Invariants: a committed step or manifest never changes, and says by partition up to which offset everything
is in the files; so a reader that takes one of them has an exact seam.

Not its job: writing (the jobs do) and querying (`chronik.query` does). See docs/FORMATS.md for the layouts.
"""
