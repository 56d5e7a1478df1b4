"""What one config key is: its name, type, default and valid values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from chronik.model import WITHOUT_EFFECT, ErrorCode, RequestError

__all__ = ["INT_MAX", "LONG_MAX", "ConfigDef", "ConfigKind", "check_values", "parse_int"]


class ConfigKind(IntEnum):
    """Kafka's numbers for the type of a config value (DescribeConfigs)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
VALUE_LENGTH_MAX: Final = 32_767
"""Longest text of a value: the longest string in Kafka's older encoding."""
_BITS: Final = {ConfigKind.SHORT: 16, ConfigKind.INT: 32, ConfigKind.LONG: 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    name: str
    kind: ConfigKind
    default: str | None
    """None if there is no value unless one is set."""
    doc: str
    server_names: tuple[tuple[str, int], ...] = ()
    """Broker configs that give the default, strongest first, each with the factor to this config's unit."""
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()

    @property
    def has_effect(self) -> bool:
        return not self.doc.startswith(WITHOUT_EFFECT)

    @property
    def is_sensitive(self) -> bool:
        return self.kind is ConfigKind.PASSWORD

    def parse(self, text: str) -> Any:
        """The typed value; ValueError with the reason if there is none."""
        text = text.strip()
        match self.kind:
            case ConfigKind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ValueError("Expected value to be either true or false")
                if self.choices and text.lower() not in self.choices:
                    raise ValueError(self.doc)
                return text.lower() == "true"
            case ConfigKind.SHORT | ConfigKind.INT | ConfigKind.LONG:
                return self._in_range(_fitting(parse_int(text), _BITS[self.kind]))
            case ConfigKind.DOUBLE:
                return self._in_range(float(text))
            case ConfigKind.LIST:
                return self._parse_list(text)
            case ConfigKind.STRING:
                if self.choices and text not in self.choices:
                    raise ValueError(f"String must be one of: {', '.join(self.choices)}")
                return text
            case ConfigKind.CLASS | ConfigKind.PASSWORD:
                return text

    def _in_range(self, value: Any) -> Any:
        if not self.low <= value <= self.high:
            bounds = f"at least {self.low:.15g}" if value < self.low else f"no more than {self.high:.15g}"
            raise ValueError(f"Value must be {bounds}")
        return value

    def _parse_list(self, text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        for item in items:
            if self.choices and item not in self.choices:
                raise ValueError(f"Item '{item}' must be one of: {', '.join(self.choices)}")
        if self.choices and not items:
            raise ValueError(f"List must have at least one of: {', '.join(self.choices)}")
        return items


def check_values(
    whose: str,
    definitions: Mapping[str, ConfigDef],
    values: Mapping[str, str | None],
    *,
    unknown: ErrorCode = ErrorCode.invalid_config,
) -> None:
    """RequestError that names the first key that is unknown or has no valid value."""
    for name, text in values.items():
        definition = definitions.get(name)
        if definition is None:
            raise RequestError(unknown, f"Unknown {whose} config name: {name}")
        if text is None:
            raise RequestError(
                ErrorCode.invalid_config, f"Null value not supported for {whose} config: {name}"
            )
        if len(text) > VALUE_LENGTH_MAX:
            raise RequestError(
                ErrorCode.invalid_config, f"A value of {len(text)} characters is too long for {name}"
            )
        try:
            definition.parse(text)
        except ValueError as error:
            raise RequestError(
                ErrorCode.invalid_config, f"Invalid value {text} for configuration {name}: {error}"
            ) from None


def _fitting(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"Not a number of {bits} bits")
    return value


def parse_int(text: str) -> int:
    if not text.lstrip("+-").isdecimal() or not text.isascii():
        raise ValueError("Not a number")
    return int(text)
