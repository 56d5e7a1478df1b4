"""docs/PROTOCOL.md: every API, the versions that a node offers, which clients were seen to send them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey
from chronik.wire.produce import FIRST_SUPPORTED

SEEN = Path(__file__).parents[1] / "tests" / "compat" / "protocol.tsv"
HEAD = """\
# Protocol

Made by `python tools/check_docs.py --write`: the versions come from the handlers, the clients from what real
clients sent in the tests under compat, security and cluster. The nodes note it; a test run that sees more
than this page says fails, and `pytest --write-protocol` adds it. A version that no client sends is unproven:
`tests/unit/server/test_every_version.py` asks for it in kio's bytes, reads the answer with kio; where Apache
Kafka offers it too, `tests/compat/test_differential.py` compares the answers.

| API | key | versions | proven by | unproven |
|---|---|---|---|---|
"""
GROUP_HEAD = """
## Fields that newer versions added to the calls of classic groups

A classic group treats them as Apache Kafka's `ClassicGroup` does;
`tests/unit/server/test_classic_group_fields.py` asks for each.

| API | field | what a classic group does with it |
|---|---|---|
"""
GROUP_FIELDS = (
    (
        "JoinGroup",
        "`group_instance_id` (v5)",
        "a static member keeps its place; another member id for the same instance is fenced",
    ),
    ("JoinGroup, LeaveGroup", "`reason` (v8, v5)", "taken, without effect"),
    (
        "SyncGroup, Heartbeat, OffsetCommit, TxnOffsetCommit",
        "`group_instance_id` (v3, v3, v7, v3)",
        "unknown: UNKNOWN_MEMBER_ID; of another member: FENCED_INSTANCE_ID",
    ),
    (
        "SyncGroup",
        "`protocol_type`, `protocol_name` (v5)",
        "given and not the group's: INCONSISTENT_GROUP_PROTOCOL",
    ),
    ("LeaveGroup", "`members` (v3)", "each by its member id or its instance, each with a code of its own"),
    (
        "OffsetCommit",
        "`generation_id_or_member_epoch` (v9)",
        "the generation: a wrong one is ILLEGAL_GENERATION, never STALE_MEMBER_EPOCH; of a group that does "
        "not exist GROUP_ID_NOT_FOUND (before v9 ILLEGAL_GENERATION)",
    ),
    (
        "TxnOffsetCommit",
        "`generation_id`, `member_id` (v3)",
        "checked as in OffsetCommit; without both the commit is taken, as before v3",
    ),
    (
        "OffsetFetch",
        "`member_id`, `member_epoch` (v9)",
        "not looked at: whoever may read the group gets its offsets",
    ),
)
REFUSED = {ApiKey.PRODUCE: range(FIRST_SUPPORTED)}
"""Advertised, but no request in these versions can succeed."""
REFUSED_PART = """
## Advertised and refused

Produce v0 to v2 carry the message formats before v2, which a node does not store: the answer is
UNSUPPORTED_VERSION. They are advertised all the same, as Apache Kafka does: many releases of librdkafka do
not compress for a broker that does not offer them (KAFKA-18659).

ShareGroupHeartbeat, ShareFetch and ShareAcknowledge are advertised in order to be refused in the same way: a
share consumer of librdkafka would wait in silence for ever if they were missing.
"""
ABSENT_HEAD = """
## Not offered

But for these two exceptions, what a node cannot do it does not advertise: clients find that out before they
ask.

"""
BETWEEN_BROKERS = frozenset(
    {
        *(ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.ALTER_PARTITION),
        *(ApiKey.ENVELOPE, ApiKey.FETCH_SNAPSHOT, ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT),
        *(ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.CONTROLLER_REGISTRATION, ApiKey.ASSIGN_REPLICAS_TO_DIRS),
        *(ApiKey.UPDATE_RAFT_VOTER, ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE),
        *(ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE),
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""Apache Kafka's brokers and controllers speak these among themselves."""


def protocol_page() -> str:
    seen = _seen()
    handlers = sorted(all_handlers(), key=lambda handler: handler.api_key)
    rows = []
    for handler in handlers:
        low, high = handler.versions
        versions: dict[str, list[int]] = defaultdict(list)
        unproven = []
        for version in range(low, high + 1):
            for client in seen.get((handler.api_key, version), ()):
                versions[client].append(version)
            if (handler.api_key, version) not in seen and version not in REFUSED.get(handler.api_key, ()):
                unproven.append(version)
        proven = "; ".join(f"{client} {ranges(which)}" for client, which in sorted(versions.items()))
        name = api_name(handler.api_key)
        rows.append(
            f"| {name} | {int(handler.api_key)} | {low} to {high} | {proven} | {ranges(unproven)} |\n"
        )
    offered = {handler.api_key for handler in handlers}
    absent = [api_name(key) for key in ApiKey if key not in offered and key not in BETWEEN_BROKERS]
    inner = [api_name(key) for key in sorted(BETWEEN_BROKERS - offered)]
    return (
        HEAD
        + "".join(rows)
        + GROUP_HEAD
        + "".join(f"| {apis} | {field} | {what} |\n" for apis, field, what in GROUP_FIELDS)
        + REFUSED_PART
        + ABSENT_HEAD
        + ",\n".join(absent)
        + ".\n\nOnly between Apache Kafka's own brokers and controllers: "
        + ",\n".join(inner)
        + ".\n"
    )


def _seen() -> dict[tuple[int, int], list[str]]:
    rows = (line.split("\t") for line in SEEN.read_text().splitlines())
    return {(int(key), int(version)): clients.split(", ") for key, version, clients in rows}


def api_name(key: ApiKey) -> str:
    """As Kafka spells it: ListOffsets."""
    return key.name.title().replace("_", "")


def ranges(versions: list[int]) -> str:
    """3 to 5, 9"""
    parts: list[list[int]] = []
    for version in versions:
        if parts and parts[-1][-1] == version - 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return ", ".join(f"v{part[0]}" if len(part) == 1 else f"v{part[0]} to v{part[-1]}" for part in parts)
