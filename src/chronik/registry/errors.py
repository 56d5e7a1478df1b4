"""What a registry's client gets when something goes wrong: Confluent's error code and a sentence."""

from __future__ import annotations

from chronik.model import ChronikError

__all__ = ["InvalidSchema", "RegistryError", "TooExpensive"]


class RegistryError(ChronikError):
    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message

    @property
    def status(self) -> int:
        """Error codes are a status with two digits behind it, or a plain status."""
        return self.error_code if self.error_code < 1000 else self.error_code // 100


class InvalidSchema(ChronikError):
    """A schema that cannot be registered; the message says why."""


class TooExpensive(ChronikError):
    """Parsing or comparing takes more steps than it may."""
