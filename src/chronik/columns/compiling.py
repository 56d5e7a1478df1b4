"""Compile a function once per machine, not once per worker.

Spark starts many short Python workers, and a compilation costs each of them seconds. numba keeps compiled
code beside the source or in the user's cache directory; where neither can be written (a read-only image,
an executor without a home) a private directory under the system's temporary one takes its place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from chronik.columns.private_directory import private_directory

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code that releases the GIL, from the cache if it was compiled before."""
    try:
        return _jit(function, cache=True)
    except RuntimeError:
        directory = private_directory(Path(tempfile.gettempdir()))
        if directory is None:
            return _jit(function, cache=False)
        numba.config.CACHE_DIR = str(directory)
        return _jit(function, cache=True)


def _jit(function: F, *, cache: bool) -> F:
    made: F = numba.njit(cache=cache, nogil=True, boundscheck=False)(function)
    return made


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(context: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
    """One memcpy between byte arrays: numba's own loops and slices take many times as long."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        views = [context.make_array(kinds[i])(context, builder, arguments[i]) for i in (0, 2)]
        to = builder.gep(views[0].data, [arguments[1]])
        origin = builder.gep(views[1].data, [arguments[3]])
        cgutils.raw_memcpy(builder, to, origin, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate
