"""Requests about logins, users, rights, quotas and delegation tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import Make
from tests.compat.differential.world import MISSING
from tests.wire import Fields

K = ApiKey
SHA_256, SHA_512 = 1, 2
EXACT, DEFAULT, SPECIFIED = range(3)
USER = "diff-user"


def put(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> Fields:
    key = bytes(32 if mechanism == SHA_256 else 64)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"pepper",
        "salted_password": key,
    }


def users(*upsertions: Fields, gone: tuple[tuple[str, int], ...] = ()) -> Make:
    deletions = [{"name": name, "mechanism": mechanism} for name, mechanism in gone]
    return lambda _world: {"deletions": deletions, "upsertions": list(upsertions)}


def quotas(*components: tuple[str, int, str | None], strict: bool = False) -> Make:
    given = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return lambda _world: {"components": given, "strict": strict}


def changed(*entity: tuple[str, str | None], ops: Fields, checked: bool = False) -> Make:
    named = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    values = [
        {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
        for key, value in ops.items()
    ]
    return lambda _world: {"entries": [{"entity": named, "ops": values}], "validate_only": checked}


ANY, MATCH = 1, 2
TOPIC_KIND, GROUP_KIND, CLUSTER_KIND = 2, 3, 4
LITERAL, PREFIXED = 3, 4
READ, ALTER = 3, 7
DENY, ALLOW = 2, 3
WHO: Final = "User:diff"


def acl(**more: object) -> Fields:
    return {
        "resource_type": TOPIC_KIND,
        "resource_name": "diff-acl",
        "resource_pattern_type": LITERAL,
        "principal": WHO,
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **more,
    }


def acls(*wanted: Fields) -> Make:
    return lambda _world: {"creations": list(wanted)}


def wanted_acls(**more: object) -> Fields:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": WHO,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **more,
    }


def filters(*wanted: Fields) -> Make:
    return lambda _world: {"filters": list(wanted)}


def described(**more: object) -> Make:
    return lambda _world: wanted_acls(**more)


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.SASL_HANDSHAKE: {
        "a mechanism": lambda w: {"mechanism": "PLAIN"},
        "an unknown mechanism": lambda w: {"mechanism": "SMOKE"},
        "a long mechanism": lambda w: {"mechanism": "x" * 1_000},
    },
    K.SASL_AUTHENTICATE: {
        "a password": lambda w: {"auth_bytes": b"\0user\0password"},
        "a SCRAM message": lambda w: {"auth_bytes": b"n,,n=user,r=nonce"},
    },
    # DescribeAcls (29) comes first and finds none; DeleteAcls (31) finds what CreateAcls (30) left.
    K.DESCRIBE_ACLS: {
        "all": described(principal_filter=None),
        "a user's": described(),
        "a topic's": described(
            resource_type_filter=TOPIC_KIND, resource_name_filter="diff-acl", pattern_type_filter=LITERAL
        ),
        "whatever matches": described(
            resource_type_filter=TOPIC_KIND, resource_name_filter="diff-acl", pattern_type_filter=MATCH
        ),
        "an unknown pattern": described(pattern_type_filter=9),
        "an unknown operation": described(operation=99),
        "an unknown permission": described(permission_type=9),
        "an unknown resource": described(resource_type_filter=99),
    },
    K.CREATE_ACLS: {
        "a right": acls(acl()),
        "the same again": acls(acl()),
        "two at once": acls(
            acl(resource_name="diff-two"), acl(resource_type=GROUP_KIND, resource_pattern_type=PREFIXED)
        ),
        "a refusal": acls(acl(permission_type=DENY, host="10.0.0.1")),
        "of the cluster": acls(
            acl(resource_type=CLUSTER_KIND, resource_name="kafka-cluster", operation=ALTER)
        ),
        "of a cluster with another name": acls(acl(resource_type=CLUSTER_KIND, resource_name="x")),
        "any operation": acls(acl(operation=ANY)),
        "any permission": acls(acl(permission_type=ANY)),
        "any resource": acls(acl(resource_type=ANY)),
        "a pattern to match": acls(acl(resource_pattern_type=MATCH)),
        "no name": acls(acl(resource_name="")),
        "no principal": acls(acl(principal="")),
        "a principal without a kind": acls(acl(principal="diff")),
        # Of others than those that DeleteAcls looks for: only Apache Kafka makes these.
        "no host": acls(acl(host="", principal="User:odd")),
        "an operation that the resource has not": acls(
            acl(resource_type=GROUP_KIND, operation=ALTER, principal="User:odd")
        ),
        "every operation": acls(acl(operation=2)),
        "a right and what is none": acls(acl(), acl(resource_name="")),
        "none": acls(),
    },
    K.DELETE_ACLS: {
        "a topic's": filters(
            wanted_acls(
                resource_type_filter=TOPIC_KIND, resource_name_filter="diff-acl", pattern_type_filter=LITERAL
            )
        ),
        "what is gone": filters(
            wanted_acls(
                resource_type_filter=TOPIC_KIND, resource_name_filter="diff-acl", pattern_type_filter=LITERAL
            )
        ),
        "a user's": filters(wanted_acls()),
        "two filters": filters(wanted_acls(), wanted_acls(principal_filter="User:nobody")),
        "an unknown operation": filters(wanted_acls(operation=99)),
        "none": filters(),
    },
    K.CREATE_DELEGATION_TOKEN: {
        "for oneself": lambda w: {"renewers": [], "max_lifetime": -1},
        "for somebody else": lambda w: {
            "owner_principal_type": "User",
            "owner_principal_name": "diff",
            "renewers": [],
            "max_lifetime": 1_000,
        },
        "a renewer of another kind": lambda w: {
            "renewers": [{"principal_type": "Group", "principal_name": "x"}],
            "max_lifetime": -1,
        },
    },
    K.RENEW_DELEGATION_TOKEN: {
        "an unknown token": lambda w: {"hmac": b"x" * 64, "renew_period": 1_000},
        "no token": lambda w: {"hmac": b"", "renew_period": -1},
    },
    K.EXPIRE_DELEGATION_TOKEN: {
        "an unknown token": lambda w: {"hmac": b"x" * 64, "expiry_time_period": -1},
        "no token": lambda w: {"hmac": b"", "expiry_time_period": 1_000},
    },
    K.DESCRIBE_DELEGATION_TOKEN: {
        "all": lambda w: {"owners": None},
        "nobody's": lambda w: {"owners": []},
        "a user's": lambda w: {"owners": [{"principal_type": "User", "principal_name": "diff"}]},
    },
    K.DESCRIBE_USER_SCRAM_CREDENTIALS: {
        "all": lambda w: {"users": None},
        "nobody": lambda w: {"users": []},
        "an unknown user": lambda w: {"users": [{"name": MISSING}]},
        "an unknown user twice": lambda w: {"users": [{"name": MISSING}, {"name": MISSING}]},
        "no name": lambda w: {"users": [{"name": ""}]},
    },
    K.ALTER_CLIENT_QUOTAS: {
        "a user's": changed(("user", USER), ops={"producer_byte_rate": 1e9}),
        "the same again": changed(("user", USER), ops={"producer_byte_rate": 1e9}),
        "taken away": changed(("user", USER), ops={"producer_byte_rate": None}),
        "taken away again": changed(("user", USER), ops={"producer_byte_rate": None}),
        "a user's and a client's": changed(
            ("user", USER), ("client-id", "diff"), ops={"consumer_byte_rate": 1e9}
        ),
        "taken from both": changed(("user", USER), ("client-id", "diff"), ops={"consumer_byte_rate": None}),
        "the default user's": changed(("user", None), ops={"request_percentage": 1e6}, checked=True),
        "only checked": changed(("user", USER), ops={"producer_byte_rate": 7.0}, checked=True),
        "an address": changed(("ip", "127.0.0.9"), ops={"connection_creation_rate": 1000.0}, checked=True),
        "what is no address": changed(("ip", "nowhere.invalid"), ops={"connection_creation_rate": 1.0}),
        "a user and an address": changed(
            ("user", USER), ("ip", "127.0.0.9"), ops={"connection_creation_rate": 1.0}
        ),
        "an address with a byte rate": changed(("ip", "127.0.0.9"), ops={"producer_byte_rate": 1.0}),
        "an unknown type": changed(("color", "red"), ops={"producer_byte_rate": 1.0}),
        "a type twice": changed(("user", USER), ("user", "other"), ops={"producer_byte_rate": 1.0}),
        "an unknown quota": changed(("user", USER), ops={"hats": 1.0}),
        "a quota of 0": changed(("user", USER), ops={"producer_byte_rate": 0.0}),
        "a negative quota": changed(("user", USER), ops={"producer_byte_rate": -1.0}),
        "part of a byte": changed(("user", USER), ops={"producer_byte_rate": 0.5}),
        "no entity": changed(ops={"producer_byte_rate": 1.0}),
        "an empty name": changed(("user", ""), ops={"producer_byte_rate": 1.0}),
        "no quota": changed(("user", USER), ops={}),
    },
    K.ALTER_USER_SCRAM_CREDENTIALS: {
        "a user": users(put(USER)),
        "another mechanism": users(put(USER, SHA_512)),
        "both mechanisms at once": users(put(USER), put(USER, SHA_512)),
        "the same credential twice": users(put(USER), put(USER)),
        "put and removed": users(put(USER), gone=((USER, SHA_256),)),
        "too few iterations": users(put(USER, iterations=4095)),
        "too many iterations": users(put(USER, iterations=16385)),
        "too few iterations, then the same again": users(put(USER, iterations=4095), put(USER)),
        "too few iterations at the second": users(put(USER), put(USER, iterations=4095)),
        "an unknown mechanism": users(put(USER, 7)),
        "an unknown mechanism twice": users(put(USER, 7), put(USER, 7)),
        "an unknown mechanism beside a known one": users(put(USER), put(USER, 7)),
        "no name": users(put("")),
        "no name to remove": users(gone=(("", SHA_256),)),
        "one of two users": users(put(USER), put("diff-other", iterations=1)),
        "remove a user": users(gone=((USER, SHA_256),)),
        "remove it again": users(gone=((USER, SHA_256),)),
        "remove what nobody has": users(gone=((MISSING, SHA_512),)),
    },
    K.DESCRIBE_CLIENT_QUOTAS: {
        "all": quotas(),
        "a user": quotas(("user", EXACT, MISSING)),
        "the default user": quotas(("user", DEFAULT, None)),
        "any user": quotas(("user", SPECIFIED, None), strict=True),
        "a user and a client": quotas(("user", EXACT, MISSING), ("client-id", DEFAULT, None)),
        "an address": quotas(("ip", EXACT, "127.0.0.1")),
        "an address and a user": quotas(("ip", EXACT, "127.0.0.1"), ("user", EXACT, MISSING)),
        "a type twice": quotas(("user", EXACT, MISSING), ("user", DEFAULT, None)),
        "no type": quotas(("", EXACT, MISSING)),
        "an unknown type": quotas(("color", EXACT, "red")),
        "exactly nothing": quotas(("user", EXACT, None)),
        "a default with a name": quotas(("user", DEFAULT, MISSING)),
        "any with a name": quotas(("user", SPECIFIED, MISSING)),
        "an unknown match": quotas(("user", 3, None)),
        "an unknown match of an unknown type": quotas(("color", 3, None)),
    },
}
