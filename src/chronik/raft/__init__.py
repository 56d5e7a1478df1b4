"""Consensus: a Raft core without I/O.

Purpose. Nodes agree on one log and on who leads. Inputs are method calls (a message, a tick, a
proposal, "this is durable", "this is applied"); the output is a `Ready` with work for the driver.
No clock, no sockets, no files, no random numbers of its own: the same inputs give the same
outputs, so whole clusters run inside a test.

Flow. `core` owns a node's state and hands each message past `fence` (terms) to the current role:
`follower`, `candidate` (poll and vote), `leader`. The log lives in `log`, what of it is on disk in
`durability`, what the leader knows of others in `progress`, reads in `reads`. `outbox` keeps
promises back until the disk has caught up.

The driver, after every input, calls `ready()` until it gives None, and for each Ready, in order:

1. queues to storage, in this order: `hard_state`, `snapshot` (durable before the stored log is
   voided as a whole), `truncate_from` (void stored entries from there on), `entries` (append);
2. sends `messages` at once, without waiting for 1. It puts its newest durable snapshot into an
   InstallSnapshot before sending it; that one's index is never below the message's;
3. calls `persisted(ready.number)` when all of 1 is durable, unless the number is 0. Storage is a
   queue: a later Ready never becomes durable before an earlier one, and a crash keeps a prefix.
   Readies may overlap: nothing waits for `persisted` except the promises that need it;
4. installs `snapshot` in the state machine (if durable), else applies `committed`, and calls
   `applied(index)`; answers `reads`.

After a restart the driver passes all that storage has, unfiltered: hard state, newest snapshot,
and every stored entry; the core sorts out what a crash left half done.

Invariants. One leader per term. A vote or acknowledgement leaves only when what it promises is
durable. A leader counts its own log only as far as it is durable. Only entries of the leader's own
term are committed by counting. Committed entries never change; a commit index beyond the log is
an error, never clamped. Entries are applied once, in order, committed and durable. One membership
change at a time. A term opens only after a majority agreed to it in a pre-vote, or by transfer.

Not its job. Persistence, transport, retries of connections, forwarding proposals to the leader,
the state machine and its snapshots' bytes, deciding when to compact.
"""

from __future__ import annotations

from chronik.raft.core import RaftCore
from chronik.raft.entries import (
    ChangeKind,
    ConfigChange,
    Entry,
    EntryKind,
    HardState,
    Membership,
    NotLeader,
    RaftConfig,
    Snapshot,
)
from chronik.raft.log import decode_membership
from chronik.raft.messages import InstallSnapshot, Message, decode, encode
from chronik.raft.progress import ProgressState
from chronik.raft.reads import ReadResult
from chronik.raft.ready import FollowerStatus, Ready, RoleName, SoftState, Status

__all__ = [
    "ChangeKind",
    "ConfigChange",
    "Entry",
    "EntryKind",
    "FollowerStatus",
    "HardState",
    "InstallSnapshot",
    "Membership",
    "Message",
    "NotLeader",
    "ProgressState",
    "RaftConfig",
    "RaftCore",
    "ReadResult",
    "Ready",
    "RoleName",
    "Snapshot",
    "SoftState",
    "Status",
    "decode",
    "decode_membership",
    "encode",
]
