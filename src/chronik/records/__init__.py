"""Record batches (Kafka message format v2): what the bytes mean.

Flow: a batch arrives as bytes, `batch.py` reads its 61-byte header and checks the CRC, the
broker patches base offset and leader epoch (both outside the CRC) and stores it as it came.
`reader.py` and `writer.py` look inside a batch record by record; they serve tools, control
records, internal topics and compaction, never produce, replicate or fetch.

Invariants: nothing here does I/O; a batch that passes `check_batch` is whole and unharmed.
Not its job: where batches are stored, or whether their offsets follow each other.
"""
