"""What the three ACL requests have in common."""

from __future__ import annotations

from chronik.model import ErrorCode, RequestError
from chronik.security.acl_fields import FilterFields, read_filter
from chronik.security.acls import AclFilter
from chronik.server.access import Access

__all__ = ["checked_filter", "require_authorizer"]


def require_authorizer(access: Access) -> None:
    if access.is_open:
        raise RequestError(ErrorCode.security_disabled, "No Authorizer is configured.")


def checked_filter(fields: FilterFields) -> AclFilter:
    """RequestError if the filter's numbers stand for nothing."""
    try:
        return read_filter(fields)
    except ValueError as error:
        raise RequestError(ErrorCode.invalid_request, f"The filter is not valid: {error}.") from None
