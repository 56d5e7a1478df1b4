"""Who somebody is and what they may do: principals, authentication exchanges, ACLs, quotas. Pure.

Flow: a listener drives one of the exchanges (`scram`, `plain`, `oauth`) and gets a principal, or takes it
from a certificate (`principals`); the gate in `server` asks `acls` whether that principal may do what its
request says; `quotas` tells how long a client has to wait for having taken more than its share.

Invariants: nothing here does I/O, reads a clock or draws a random number; what is compared with a secret is
compared in constant time; a message that makes no sense is an `AuthenticationFailed`, never another
exception.

Not its job: where credentials and ACLs are kept (`metadata`), the wire (`server`, `client`).
"""
