"""What one config key is: its name, type, default and valid values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

__all__ = ["INT_MAX", "LONG_MAX", "ConfigDef", "ConfigKind", "parse_int"]


class ConfigKind(IntEnum):
    """Kafka's numbers for the type of a config value (DescribeConfigs)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    name: str
    kind: ConfigKind
    default: str
    doc: str
    server_names: tuple[tuple[str, int], ...] = ()
    """Broker configs that give the default, strongest first, each with the factor to this config's unit."""
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()

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
            case ConfigKind.INT | ConfigKind.LONG:
                return self._in_range(parse_int(text))
            case ConfigKind.DOUBLE:
                return self._in_range(float(text))
            case ConfigKind.LIST:
                return self._parse_list(text)
            case ConfigKind.STRING:
                if self.choices and text not in self.choices:
                    raise ValueError(f"String must be one of: {', '.join(self.choices)}")
                return text

    def _in_range(self, value: Any) -> Any:
        if not self.low <= value <= self.high:
            bounds = f"at least {self.low:g}" if value < self.low else f"no more than {self.high:g}"
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


def parse_int(text: str) -> int:
    if not text.lstrip("+-").isdecimal() or not text.isascii():
        raise ValueError("Not a number")
    return int(text)
