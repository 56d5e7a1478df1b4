"""The one door to object stores: a local directory, or anything that speaks S3.

    ObjectDoor      what the rest of chronik uses: time-outs, retries, bounds, one-sentence errors
    ObjectStore     what a store must be able to do; `local.py` and `s3.py` do it, and `sim/objects.py`

Invariants:
- An object appears whole or not at all, and is never changed: each write has a name of its own.
- Nothing here blocks the event loop. No error shows a credential.

What the objects mean, and which of them count, is not its job (`tiering`).
"""
