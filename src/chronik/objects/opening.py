"""Which store a URL names: `file:///folder` or `s3://bucket/prefix`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from chronik.model import ChronikError
from chronik.objects.door import ObjectDoor
from chronik.objects.local import LocalObjects
from chronik.objects.s3 import S3Objects
from chronik.objects.store import ObjectStore

if TYPE_CHECKING:
    from chronik.config import Settings

__all__ = ["ObjectStoreOptions", "open_objects", "options_of"]


class BadObjectStore(ChronikError):
    """The settings name no object store that can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreOptions:
    url: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key_id: str | None = None
    secret_access_key: str | None = None
    timeout_s: float = 30.0

    def __repr__(self) -> str:
        return f"ObjectStoreOptions({self.url!r})"


def options_of(settings: Settings) -> ObjectStoreOptions | None:
    """None if the settings name no store."""
    if settings.object_store is None:
        return None
    return ObjectStoreOptions(
        url=settings.object_store,
        endpoint=settings.object_store_endpoint,
        region=settings.object_store_region,
        access_key_id=settings.object_store_access_key_id,
        secret_access_key=settings.object_store_secret_access_key,
        timeout_s=settings.object_store_timeout_ms / 1000,
    )


def open_objects(options: ObjectStoreOptions, rng: random.Random) -> ObjectDoor:
    """Opens no connection yet. BadObjectStore says what is wrong with the options."""
    return ObjectDoor(_store(options), rng=rng, timeout_s=options.timeout_s)


def _store(options: ObjectStoreOptions) -> ObjectStore:
    parts = urlsplit(options.url)
    if parts.username is not None or parts.query or parts.fragment:
        raise BadObjectStore("object_store is a plain URL: credentials are settings of their own")
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if parts.netloc or not path.is_absolute():
            raise BadObjectStore("object_store names no folder: write file:///path/of/the/folder")
        return LocalObjects(path)
    if parts.scheme != "s3" or not parts.netloc:
        raise BadObjectStore("object_store is none of file:///folder and s3://bucket/prefix")
    _check_endpoint(options.endpoint)
    if (options.access_key_id is None) != (options.secret_access_key is None):
        raise BadObjectStore(
            "object_store_access_key_id and object_store_secret_access_key belong together: set both"
        )
    if find_spec("obstore") is None:
        raise BadObjectStore("s3:// needs the package obstore: pip install 'chronik[objects]'")
    return S3Objects(
        parts.netloc,
        parts.path.strip("/"),
        endpoint=options.endpoint,
        region=options.region,
        access_key_id=options.access_key_id,
        secret_access_key=options.secret_access_key,
        timeout_s=options.timeout_s,
    )


def _check_endpoint(endpoint: str | None) -> None:
    """Refuse an endpoint that holds credentials: it is shown in errors and by `chronik config`."""
    if endpoint is None:
        return
    parts = urlsplit(endpoint)
    is_plain = parts.username is None and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise BadObjectStore(
            "object_store_endpoint is a plain URL such as https://s3.example.com:9000: credentials are "
            "settings of their own"
        )
