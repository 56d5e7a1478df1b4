"""The audit log: what other nodes hand over, and what people look at."""

from __future__ import annotations

from typing import Any

import msgspec

from chronik.admin.audit_writer import AUDIT_PATH
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE_ALONE
from chronik.model import AUDIT_TOPIC, Int32
from chronik.security.acls import Operation, ResourceType
from chronik.security.quotas import CONSUMER_RATE
from chronik.server.audit import AuditEntry
from chronik.server.gate import on_named

SHOWN_MAX = 1_000


class AuditQuery(msgspec.Struct, frozen=True):
    limit: Int32 = 200


class AuditList(msgspec.Struct, frozen=True):
    is_on: bool
    dropped: int
    """Refusals and changes that this node could tell only as part of a sum, since it began."""
    entries: list[AuditEntry]
    """The newest first."""


class AuditEntries(msgspec.Struct, frozen=True):
    entries: list[AuditEntry]


@endpoint(
    "GET",
    "/admin/audit",
    summary="Who did what, newest first",
    needs=on_named(Operation.READ, ResourceType.TOPIC, lambda _call: AUDIT_TOPIC),
    query=AuditQuery,
    answer=AuditList,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
)
async def audit_log(call: HttpCall) -> AuditList:
    """What `__chronik_audit` holds: refusals and failed logins, and what was changed."""
    if not 1 <= call.query.limit <= SHOWN_MAX:
        raise HttpError(400, "invalid_query", f"limit is 1 to {SHOWN_MAX}.")
    from chronik.admin.routes.messages import newest_values

    audit = call.context.security.audit
    values = await newest_values(call.context, AUDIT_TOPIC, call.query.limit)
    entries = [msgspec.json.decode(value, type=AuditEntry) for value in values]
    return AuditList(audit.is_on, audit.dropped, entries)


@endpoint(
    "POST",
    AUDIT_PATH,
    summary="Entries of another node's audit log; nodes call each other",
    needs=BY_NODE_ALONE,
    body=AuditEntries,
    access=HttpAccess.CHANGE,
)
async def take_audit(call: HttpCall) -> dict[str, Any]:
    """The node that leads the audit log appends them."""
    signed, entries = call.caller.signed, call.body.entries
    if signed is not None and any(entry.node_id != signed.node_id for entry in entries):
        raise HttpError(403, "not_its_own", "A node hands over what it saw itself.")
    await call.context.audit.append(entries)
    return {}
