"""Credentials, ACLs, quotas and tokens in the cluster's state."""

from __future__ import annotations

import pytest

from chronik.metadata import commands as c
from chronik.metadata import security
from chronik.metadata.events import SecurityChanged
from chronik.metadata.snapshot import decode_snapshot, encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.security.api_keys import NamedKey, digest_of
from chronik.security.scram import MECHANISMS, make_credential
from chronik.security.tokens import DelegationToken

ACL = AclBinding(
    resource_type=ResourceType.TOPIC, resource_name="orders", principal="User:alice", operation=Operation.READ
)
CREDENTIALS = [make_credential(one, "geheim", b"salt", 4096) for one in MECHANISMS.values()]
TOKEN = DelegationToken(
    token_id="t", owner="User:alice", requester="User:bob", issued_ms=1, expires_ms=2, ends_ms=3
)
KEY = NamedKey(name="grafana", digest=digest_of("its key"), read_only=True, created_ms=1)
ENTITY = (("client-id", None), ("user", "alice"))
COMMANDS: list[c.Command] = [
    *(c.PutCredential(user="alice", credential=one) for one in CREDENTIALS),
    c.AddAcls(bindings=(ACL,)),
    c.SetQuota(entity=ENTITY, values={"producer_byte_rate": 10.0, "consumer_byte_rate": 5.0}),
    c.PutToken(token=TOKEN),
    c.PutApiKey(key=KEY),
]


def after(*commands: c.Command) -> ClusterState:
    state = ClusterState()
    for index, command in enumerate(commands, 1):
        # Through the log's bytes, as on any node.
        entry = c.decode_entry(c.encode_entry(c.CommandEntry(1, index, command)))
        outcome = state.apply(entry.command, index)
        assert outcome.refused is None
        assert isinstance(outcome.events[0], SecurityChanged)
    return state


def test_what_is_put_is_there_and_survives_a_snapshot() -> None:
    state = after(*COMMANDS)
    for one in (state, decode_snapshot(encode_snapshot(state))):
        assert one.security.users == {"alice": {held.mechanism: held for held in CREDENTIALS}}
        assert one.security.acls == {ACL}
        assert one.security.quotas == {ENTITY: {"producer_byte_rate": 10.0, "consumer_byte_rate": 5.0}}
        assert one.security.tokens == {"t": TOKEN}
        assert one.security.keys == {KEY.digest: KEY}


def test_equal_states_have_equal_snapshots() -> None:
    other = ClusterState()
    for index, command in enumerate(reversed(COMMANDS), 1):
        other.apply(command, index)
    assert encode_snapshot(other) == encode_snapshot(after(*COMMANDS))


def test_what_is_removed_is_gone() -> None:
    state = after(
        *COMMANDS,
        *(c.RemoveCredential(user="alice", mechanism=one.mechanism) for one in CREDENTIALS),
        c.RemoveAcls(bindings=(ACL,)),
        c.SetQuota(entity=ENTITY, values={"producer_byte_rate": None, "consumer_byte_rate": None}),
        c.RemoveToken(token_id="t"),
    )
    held = state.security
    assert not held.users
    assert not held.acls
    assert not held.quotas
    assert not held.tokens


def test_what_is_not_there_cannot_be_removed() -> None:
    state = ClusterState()
    refused = state.apply(c.RemoveCredential(user="bob", mechanism="SCRAM-SHA-256"), 1).refused
    assert refused is not None
    assert refused.code == ErrorCode.resource_not_found
    refused = state.apply(c.RemoveToken(token_id="x"), 2).refused
    assert refused is not None
    assert refused.code == ErrorCode.delegation_token_not_found


def test_no_secret_is_in_the_log_or_a_snapshot() -> None:
    entries = b"".join(c.encode_entry(c.CommandEntry(1, 1, command)) for command in COMMANDS)
    assert b"geheim" not in entries + encode_snapshot(after(*COMMANDS))


def test_quotas_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "QUOTAS_MAX", 1)
    state = after(*COMMANDS)
    assert state.apply(c.SetQuota(entity=ENTITY, values={"producer_byte_rate": 1.0}), 90).refused is None
    refused = state.apply(
        c.SetQuota(entity=(("user", "bob"),), values={"producer_byte_rate": 1.0}), 91
    ).refused
    assert refused is not None
    assert refused.code == ErrorCode.policy_violation
