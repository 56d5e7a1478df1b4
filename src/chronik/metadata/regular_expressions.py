"""Regular expressions of clients: RE2, which never backtracks, within a limit of memory."""

from __future__ import annotations

from typing import Any, Final

import re2

PROGRAM_BYTES_MAX: Final = 1 << 20
"""For RE2's program and the automaton it builds while matching."""


def compile_expression(text: str) -> Any:
    """ValueError with the reason if RE2 does not take it within the limit."""
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise ValueError(reason) from None
    finally:
        re2.purge()  # the module's own cache would keep the last 128 programs
