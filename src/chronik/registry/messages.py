"""What nodes hand to the one that is the registry, and what comes back."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from chronik.model import Int32, Int64
from chronik.registry.records import Reference

__all__ = ["RegistryAnswer", "RegistryCall", "SchemaBody"]

WORK_SECONDS_MAX: Final = 600.0
"""More than a call can take: a debt that another node makes up is paid off some day."""


class SchemaBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A schema as clients send it."""

    schema: str = ""
    schema_type: str | None = None
    references: list[Reference] | None = None
    id: Int64 | None = None
    """To be registered under this id: for subjects in mode IMPORT."""
    version: Int64 | None = None
    metadata: Any = None
    """Not supported, like `ruleSet`: refused unless null."""
    rule_set: Any = None


class RegistryCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question or a change. The node that the client asked has decided that the client may do it."""

    operation: str
    subject: str | None = None
    version: str = ""
    id: Int64 = 0
    body: SchemaBody = SchemaBody()
    value: str = ""
    """A compatibility level or a mode."""
    deleted: bool = False
    """Also list what was deleted."""
    permanent: bool = False
    prefix: str = ""
    """Subjects that begin like this."""
    latest_only: bool = False
    """Only the last version of each subject."""
    normalize: bool = False
    force: bool = False
    default_to_global: bool = False
    format: str = ""
    asker: str = ""
    """Whose turn it is when schemas wait to be judged: a principal, or an address without a login."""


class RegistryAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    value: Any = None
    error_code: Int32 = 0
    message: str = ""
    is_elsewhere: bool = False
    """This node is not the registry, or not yet. Nothing was done."""
    is_unsure: bool = False
    """A change failed that the log may have."""
    work_s: Annotated[float, msgspec.Meta(ge=0, le=WORK_SECONDS_MAX)] = 0.0
    """Processor time that is not on the event loop of the node that asks."""
