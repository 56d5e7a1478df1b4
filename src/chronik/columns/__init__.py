"""Record batches as Arrow columns, by compiled code: for SQL (`chronik.query`) and the pipeline.

Flow: `scanner` takes what was fetched from one partition and yields Arrow record batches; `kernels` holds the
loops over bytes, and `compiling` turns them into machine code once per machine, kept in a private
directory.

Invariants: no Python object per record; bytes that contradict their checksum or themselves raise
`RequestError(corrupt_message)` and never reach memory outside the buffers.

Not its job: fetching, and what the columns are for.

Importing this package costs nothing; its modules need numba and pyarrow.
"""
