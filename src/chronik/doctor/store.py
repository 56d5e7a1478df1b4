"""Whether the object store of tiered storage can be reached with the settings as they are."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from chronik.doctor.findings import Finding, ok, wrong
from chronik.model import ChronikError
from chronik.objects.opening import open_objects, options_of

if TYPE_CHECKING:
    from chronik.config import Settings

LIST_SECONDS: Final = 5.0
LISTED: Final = "chronik-doctor"
"""A folder that nobody has: the answer is short, and tells all the same whether the store can be listed."""
_FIX: Final = "Look at the store, at the network to it, and at object_store_* (`chronik config show`)."


async def look_at_store(settings: Settings) -> list[Finding]:
    """Nothing where the settings name no store."""
    check = "object store"
    options = options_of(settings)
    if options is None:
        return []
    try:
        door = open_objects(options, random.Random())
    except ChronikError as error:
        return [wrong(check, str(error), "Correct object_store and the settings that begin with its name.")]
    try:
        async with asyncio.timeout(LIST_SECONDS):
            await door.folders(LISTED)
    except TimeoutError:
        said = f"{door.address} does not answer within {LIST_SECONDS:g} s"
    except (ChronikError, OSError) as error:
        said = str(error)
    else:
        return [ok(check, f"{door.address} can be listed")]
    finally:
        await door.close()
    return [wrong(check, f"{said}: uploads wait, old records cannot be read", _FIX)]
