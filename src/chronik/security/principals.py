"""Principals, and how the name in a client's certificate becomes one. Pure.

A principal is Kafka's text for it, `User:alice`: this is how ACLs, `super.users` and logs name somebody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import re2

__all__ = [
    "ANONYMOUS",
    "USER_PREFIX",
    "MappingRules",
    "NoRuleMatches",
    "check_principal",
    "distinguished_name",
    "user_principal",
]

USER_PREFIX: Final = "User:"
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of clients on a listener without a login."""

_RULE: Final = r"DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)"
_SPLIT: Final = re2.compile(rf"\s*({_RULE})\s*(?:[,\n]|$)")
_GROUP: Final = re2.compile(r"\$(\d+)")
_ONE_RULE: Final = re2.compile(_RULE)
_PATTERN_MEMORY: Final = 1 << 20

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL_OID: Final = "1.2.840.113549.1.9.1"
_IA5_STRING: Final = 0x16


class NoRuleMatches(ValueError):
    """A certificate's name is matched by none of `ssl.principal.mapping.rules`: nobody is logged in."""


def user_principal(name: str) -> str:
    return USER_PREFIX + name


def check_principal(text: str) -> str:
    """The text, if it is `Type:name`; ValueError otherwise."""
    kind, colon, name = text.partition(":")
    if not kind or not colon or not name:
        raise ValueError(f"{text!r} is no principal: write User:name")
    return text


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """A certificate's subject, as `ssl` gives it, the way Java writes it (RFC 2253): last part first."""
    parts = ["+".join(_attribute(key, value) for key, value in part) for part in subject]
    return ",".join(reversed(parts))


def _attribute(key: str, value: str) -> str:
    if key == "emailAddress":
        raw = value.encode()
        return f"{_EMAIL_OID}=#{bytes((_IA5_STRING, len(raw) & 0xFF)).hex()}{raw.hex()}"
    escaped = "".join("\\" + char if char in ',+"\\<>;=' else char for char in value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return f"{_SHORT_NAMES.get(key, key)}={escaped}"


@dataclass(frozen=True, slots=True)
class _NameRule:
    pattern: Any
    """None: DEFAULT, the whole name as it is."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped: str = self.pattern.sub(self.replacement, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


class MappingRules:
    """`ssl.principal.mapping.rules`: the first rule whose pattern matches the whole name decides.

    `RULE:pattern/replacement/[LU]` or `DEFAULT`, separated by commas or line ends; `$1` is the first group.
    The patterns are RE2's, which has no look-around and no back references, and cannot be made to run long.
    """

    def __init__(self, text: str | None = None) -> None:
        self._rules = tuple(_parse(text or "DEFAULT"))

    def principal(self, name: str) -> str:
        for rule in self._rules:
            mapped = rule.apply(name)
            if mapped is not None:
                return user_principal(mapped)
        raise NoRuleMatches(f"no rule applies to {name!r}")


def _parse(text: str) -> Iterable[_NameRule]:
    position, text = 0, text.strip()
    while position < len(text):
        found = _SPLIT.match(text, position)
        if found is None or found.end() == position:
            raise ValueError(
                f"{text[position:]!r} is no mapping rule: RULE:pattern/replacement/[LU] or DEFAULT"
            )
        position = found.end()
        rule = found.group(1)
        if rule == "DEFAULT":
            yield _NameRule(None)
            continue
        whole = _ONE_RULE.fullmatch(rule)
        options = re2.Options()
        options.max_mem = _PATTERN_MEMORY
        options.log_errors = False
        try:
            pattern = re2.compile(whole.group(1).replace(r"\/", "/"), options)
        except re2.error as error:
            raise ValueError(f"{rule!r}: {error}") from None
        yield _NameRule(pattern, _replacement(whole.group(2), pattern.groups), whole.group(3))


def _replacement(text: str, groups: int) -> str:
    """Kafka's `$1` as RE2's group reference; a number beyond the pattern's groups stays as it is written."""

    def reference(found: Any) -> str:
        return f"\\g<{found.group(1)}>" if int(found.group(1)) <= groups else str(found.group(0))

    escaped = text.replace("\\/", "/").replace("\\", "\\\\")
    return str(_GROUP.sub(reference, escaped))
