"""Runs whole nodes, unchanged, in a world that can be broken and replayed.

Flow: a seed makes a `World`: an event loop with virtual time (`loop`), hosts joined by a network (`network`,
`transport`), each with a disk (`disk`, `files`). A scenario starts nodes and clients as `Process`es of that
world, a nemesis breaks things by the seed's choice, invariants look at every state that comes to be, and
the history of what clients saw goes to `chronik.check`. `runner` does this for many seeds on all cores.

Invariants: everything that happens follows from the seed, so the same seed gives the same trace, byte for
byte, in any process; nothing here reads a clock, a socket, a thread or a hash order. A process that crashed
runs no further line of code that anybody can see.

Not its job: being fast like a real network or disk. Latencies are chosen to reorder things, not to measure.
"""
