"""An endpoint: what it is called, what it takes and gives, who may call it. Declared where it is written."""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import msgspec

from chronik.admin.errors import Failure, HttpError, sentence
from chronik.server.access import Access
from chronik.server.gate import Needs

if TYPE_CHECKING:
    from chronik.admin.callers import Caller
    from chronik.admin.context import AdminContext

__all__ = [
    "Content",
    "Dialect",
    "FileContent",
    "Function",
    "HttpAccess",
    "HttpCall",
    "HttpEndpoint",
    "endpoint",
]

BODY_BYTES_MAX: Final = 1024 * 1024


class HttpAccess(enum.Enum):
    OPEN = "open"
    """Files that are the same everywhere."""
    HEALTH = "health"
    """Shows that the node is alive: needs a login if the settings say so."""
    METRICS = "metrics"
    """Figures for Prometheus: need a login if the settings say so, and name nobody to strangers."""
    STATUS = "status"
    """Shows how the cluster is, never what records say: needs a login where other machines can ask."""
    DATA = "data"
    """Shows records: needs a login wherever a key is set, ACLs decide, or all Kafka clients log in."""
    CHANGE = "change"
    """Changes something: needs a login unless only this machine can reach the node and nobody logs in."""


@dataclass(frozen=True, slots=True)
class Content:
    """An answer that is not JSON made of a value."""

    body: bytes
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileContent:
    """An answer that lies in a file and is sent from there, a piece at a time."""

    file: BinaryIO
    close: Callable[[], None]
    """Called once, whether the answer could be sent or not."""
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpCall:
    context: AdminContext
    path: Mapping[str, str]
    query: Any
    body: Any
    caller: Caller
    authorization: str | None = None
    """The header as it came, to be handed on to other nodes where nodes cannot sign."""

    @property
    def access(self) -> Access:
        """What the caller may do."""
        return self.caller.access


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API differs that clients know from elsewhere: unknown parameters are ignored, `%2F` is part of a
    name, errors have a form of their own."""

    failure: Callable[[int, Failure], Content]
    failure_type: type
    """What `failure` makes, for the description."""


Function: TypeAlias = Callable[[HttpCall], Awaitable[Any]]
About: TypeAlias = Callable[[Any], Iterable[str]]
"""Names in a body, for the audit log: never anything else that the body says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint:
    method: str
    path: str
    summary: str
    function: Function
    query: type | None
    body: type | None
    answer: Any
    """The type of the answer, for the description; None if it is not JSON."""
    media_type: str
    access: HttpAccess
    """Whether the call needs a login where there is no authorizer."""
    needs: Needs
    """What a principal must be allowed; the same as Kafka asks for the same thing."""
    body_bytes_max: int
    deadline_s: float
    always: bool
    """It answers even while the node waits for its cluster."""
    quota: str | None = None
    """The caller's quota that is charged: bytes of the body (producer_byte_rate) or of the answer
    (consumer_byte_rate), or the time on the event loop (request_percentage)."""
    dialect: Dialect | None = None
    """Set for an API whose form somebody else defined; None for chronik's own."""

    about: About | None = None
    """What a body names besides the path; None if the path says it all."""

    def admit_again(self, call: HttpCall) -> None:
        """For a call that has waited: HttpError or RequestError if its right or its login ended meanwhile."""
        if not call.context.callers.is_valid(call.caller):
            raise HttpError(401, "login_required", "The key or the session ended while the call waited.")
        self.needs.admit(call, call, [])

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def doc(self) -> str:
        return " ".join((self.function.__doc__ or "").split())

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"{(\w+)(?::\w+)?}", self.path)

    def parse_query(self, given: Mapping[str, str]) -> Any:
        if self.query is None:
            return None
        known = {one.encode_name for one in msgspec.structs.fields(self.query)}
        if self.dialect is not None:
            given = {name: value for name, value in given.items() if name in known}
        if unknown := sorted(set(given) - known):
            raise HttpError(
                400,
                "invalid_query",
                f"There is no parameter {unknown[0]!r}; known are {', '.join(sorted(known))}.",
            )
        try:
            return msgspec.convert(dict(given), self.query, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            raise HttpError(400, "invalid_query", sentence(str(error))) from None

    def parse_body(self, data: bytes) -> Any:
        if self.body is None:
            return None
        try:
            return msgspec.json.decode(data or b"{}", type=self.body)
        except msgspec.ValidationError as error:
            raise HttpError(400, "invalid_body", sentence(str(error))) from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise HttpError(400, "malformed_json", f"The body is not JSON: {error}.") from None


def endpoint(
    method: str,
    path: str,
    *,
    summary: str,
    needs: Needs,
    query: type | None = None,
    body: type | None = None,
    answer: Any = None,
    media_type: str = "application/json",
    access: HttpAccess = HttpAccess.STATUS,
    body_bytes_max: int = BODY_BYTES_MAX,
    deadline_s: float = 30.0,
    always: bool = False,
    quota: str | None = None,
    about: About | None = None,
    dialect: Dialect | None = None,
) -> Callable[[Function], HttpEndpoint]:
    def declare(function: Function) -> HttpEndpoint:
        return HttpEndpoint(
            method=method,
            path=path,
            summary=summary,
            function=function,
            query=query,
            body=body,
            answer=answer,
            media_type=media_type,
            access=access,
            needs=needs,
            body_bytes_max=body_bytes_max,
            deadline_s=deadline_s,
            always=always,
            quota=quota,
            about=about,
            dialect=dialect,
        )

    return declare
