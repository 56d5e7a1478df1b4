"""ACLs: a table of Kafka's rules, and the index against a twin that looks at everything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.security.acl_fields import (
    acl_fields,
    filter_fields,
    read_binding,
    read_filter,
    resource_fields,
)
from chronik.security.acls import (
    OPERATIONS,
    AclBinding,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)

ALICE, BOB, HOST = "User:alice", "User:bob", "10.0.0.1"
Op, T, P, K = Operation, ResourceType, PatternType, Permission


def acl(
    operation: Operation,
    name: str = "orders",
    *,
    kind: ResourceType = T.TOPIC,
    pattern: PatternType = P.LITERAL,
    principal: str = ALICE,
    host: str = "*",
    permission: Permission = K.ALLOW,
) -> AclBinding:
    return AclBinding(
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def may(bindings: list[AclBinding], operation: Operation, name: str = "orders", **options: object) -> bool:
    index = AclIndex(bindings, **options)  # type: ignore[arg-type]
    return index.allows(ALICE, HOST, operation, T.TOPIC, name)


def test_nothing_is_allowed_by_nothing() -> None:
    assert not may([], Op.READ)
    assert may([], Op.READ, allow_if_no_acl=True)
    assert not may([acl(Op.READ, principal=BOB)], Op.READ, allow_if_no_acl=True)
    assert may([], Op.READ, super_users=(ALICE,))
    assert may([acl(Op.ALL, permission=K.DENY)], Op.READ, super_users=(ALICE,))


@pytest.mark.parametrize(
    ("binding", "name", "expected"),
    [
        (acl(Op.READ), "orders", True),
        (acl(Op.READ), "orders2", False),
        (acl(Op.READ, "ord", pattern=P.PREFIXED), "orders", True),
        (acl(Op.READ, "orders", pattern=P.PREFIXED), "orders", True),
        (acl(Op.READ, "orders2", pattern=P.PREFIXED), "orders", False),
        (acl(Op.READ, "*"), "orders", True),
        (acl(Op.READ, "*", pattern=P.PREFIXED), "orders", False),
        (acl(Op.READ, principal=BOB), "orders", False),
        (acl(Op.READ, principal="User:*"), "orders", True),
        (acl(Op.READ, host=HOST), "orders", True),
        (acl(Op.READ, host="10.0.0.2"), "orders", False),
        (acl(Op.READ, kind=T.GROUP), "orders", False),
        (acl(Op.WRITE), "orders", False),
        (acl(Op.ALL), "orders", True),
    ],
)
def test_what_an_acl_covers(binding: AclBinding, name: str, expected: bool) -> None:
    assert may([binding], Op.READ, name) is expected


@pytest.mark.parametrize("operation", OPERATIONS[T.TOPIC])
def test_which_operations_imply_others(operation: Operation) -> None:
    """Four imply DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS, a DENY implies nothing."""
    describes = operation in (Op.DESCRIBE, Op.READ, Op.WRITE, Op.DELETE, Op.ALTER)
    assert may([acl(operation)], Op.DESCRIBE) is describes
    configs = operation in (Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
    assert may([acl(operation)], Op.DESCRIBE_CONFIGS) is configs
    denied = [acl(Op.ALL), acl(operation, permission=K.DENY)]
    assert may(denied, Op.DESCRIBE) is (operation is not Op.DESCRIBE)


def test_a_denial_wins_over_everything_that_allows() -> None:
    for deny in (
        acl(Op.READ, permission=K.DENY),
        acl(Op.ALL, "o", pattern=P.PREFIXED, permission=K.DENY),
        acl(Op.READ, "*", principal="User:*", permission=K.DENY),
    ):
        assert not may([acl(Op.READ), acl(Op.ALL, "*"), deny], Op.READ)
        assert AclIndex([acl(Op.READ), deny]).decide(ALICE, HOST, Op.READ, T.TOPIC, "orders").binding == deny


def test_some_resource_may_be_written_or_none() -> None:
    """KIP-679: an idempotent producer needs WRITE on any topic at all."""

    def any_topic(*bindings: AclBinding) -> bool:
        return AclIndex(bindings).allows_any(ALICE, HOST, Op.WRITE, T.TOPIC)

    deny = K.DENY
    assert not any_topic()
    assert any_topic(acl(Op.WRITE))
    assert any_topic(acl(Op.ALL, "ord", pattern=P.PREFIXED))
    assert not any_topic(acl(Op.READ))
    assert not any_topic(acl(Op.WRITE), acl(Op.WRITE, permission=deny))
    assert not any_topic(acl(Op.WRITE), acl(Op.WRITE, "or", pattern=P.PREFIXED, permission=deny))
    assert any_topic(acl(Op.WRITE), acl(Op.WRITE, "orders2", permission=deny))
    assert not any_topic(acl(Op.WRITE), acl(Op.WRITE, "*", permission=deny))
    assert any_topic(acl(Op.WRITE, "*"), acl(Op.WRITE, permission=deny))
    assert AclIndex([], super_users=(ALICE,)).allows_any(ALICE, HOST, Op.WRITE, T.TOPIC)


def test_filters_for_listing_and_deleting() -> None:
    literal, prefixed, wild = acl(Op.READ), acl(Op.READ, "ord", pattern=P.PREFIXED), acl(Op.READ, "*")
    every = [literal, prefixed, wild]

    def found(**fields: object) -> list[AclBinding]:
        return [one for one in every if AclFilter(**fields).matches(one)]  # type: ignore[arg-type]

    assert found() == every
    assert found(resource_name="orders") == [literal]
    assert found(resource_name="orders", pattern_type=P.MATCH) == every
    assert found(resource_name="ord", pattern_type=P.PREFIXED) == [prefixed]
    assert found(resource_name="ord", pattern_type=P.LITERAL) == []
    assert found(principal=BOB) == found(operation=Op.WRITE) == found(permission=K.DENY) == []
    assert found(resource_type=T.GROUP) == found(host=HOST) == []


@pytest.mark.parametrize(
    "wrong",
    [
        acl(Op.ANY),
        acl(Op.READ, kind=T.ANY),
        acl(Op.IDEMPOTENT_WRITE),
        acl(Op.READ, kind=T.CLUSTER, name="kafka-cluster"),
        acl(Op.ALTER, kind=T.CLUSTER, name="another"),
        acl(Op.READ, pattern=P.MATCH),
        acl(Op.READ, permission=K.ANY),
        acl(Op.READ, ""),
        acl(Op.READ, principal="alice"),
    ],
)
def test_acls_that_cannot_be_made(wrong: AclBinding) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_binding(wrong)


NAMES = st.sampled_from(["*", "a", "ab", "abc", "abd", "b"])
BINDINGS = st.builds(
    AclBinding,
    resource_type=st.sampled_from([T.TOPIC, T.GROUP]),
    resource_name=NAMES,
    pattern_type=st.sampled_from([P.LITERAL, P.PREFIXED]),
    principal=st.sampled_from([ALICE, BOB, "User:*"]),
    host=st.sampled_from(["*", HOST]),
    operation=st.sampled_from(
        [Op.ALL, Op.READ, Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS]
    ),
    permission=st.sampled_from([K.ALLOW, K.DENY]),
)


def twin(bindings: list[AclBinding], operation: Operation, name: str, everyone: bool) -> bool:
    """The rules of the module's header, one after the other, over all ACLs."""

    def covers(one: AclBinding) -> bool:
        if one.resource_type != T.TOPIC:
            return False
        if one.pattern_type == P.PREFIXED:
            return name.startswith(one.resource_name)
        return one.resource_name in ("*", name)

    covering = [one for one in bindings if covers(one)]
    mine = [one for one in covering if one.principal in (ALICE, "User:*") and one.host in ("*", HOST)]
    for one in mine:
        if one.permission == K.DENY and one.operation in (Op.ALL, operation):
            return False
    for one in mine:
        implied = {one.operation}
        if one.operation in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER):
            implied.add(Op.DESCRIBE)
        if one.operation == Op.ALTER_CONFIGS:
            implied.add(Op.DESCRIBE_CONFIGS)
        if one.permission == K.ALLOW and (one.operation == Op.ALL or operation in implied):
            return True
    return everyone and not covering


@settings(max_examples=400, deadline=None)
@given(
    bindings=st.lists(BINDINGS, max_size=8),
    operation=st.sampled_from([Op.READ, Op.WRITE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS]),
    name=NAMES,
    everyone=st.booleans(),
)
def test_the_index_decides_like_its_dumb_twin(
    bindings: list[AclBinding], operation: Operation, name: str, everyone: bool
) -> None:
    index = AclIndex(bindings, allow_if_no_acl=everyone)
    assert index.allows(ALICE, HOST, operation, T.TOPIC, name) is twin(bindings, operation, name, everyone)


def test_fields_of_requests_and_responses_mean_what_they_were_made_from() -> None:
    """The client writes what the broker reads, and the other way round."""
    binding = acl(Op.WRITE, "or", pattern=P.PREFIXED, principal=BOB, host=HOST, permission=K.DENY)
    resource = SimpleNamespace(**resource_fields(binding))
    assert read_binding(resource, resource.pattern_type, SimpleNamespace(**acl_fields(binding))) == binding
    wanted = AclFilter(
        resource_type=T.GROUP,
        resource_name="orders",
        pattern_type=P.MATCH,
        principal=BOB,
        host=HOST,
        operation=Op.READ,
        permission=K.DENY,
    )
    assert read_filter(SimpleNamespace(**filter_fields(wanted))) == wanted
