"""An object store that speaks S3, through `obstore` (the extra `objects`).

Its calls run in threads of the library; nothing here waits on the event loop's thread. The door has the
retries, so the library makes none of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from chronik.objects.store import LIST_MAX, ObjectMissing, ObjectStoreError, StoredObject

if TYPE_CHECKING:
    from obstore.store import S3Store

__all__ = ["S3Objects"]

_PART_BYTES: Final = 8 * 1024 * 1024
_PARTS_AT_ONCE: Final = 2
_CHUNK_BYTES: Final = 256 * 1024
_HIDDEN: Final = "(hidden)"


class S3Objects:
    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        endpoint: str | None,
        region: str,
        access_key_id: str | None,
        secret_access_key: str | None,
        timeout_s: float,
    ) -> None:
        from obstore.store import S3Store

        config: dict[str, Any] = {"region": region, "virtual_hosted_style_request": False}
        if endpoint is not None:
            config["endpoint"] = endpoint
        if access_key_id is not None and secret_access_key is not None:
            config |= {"access_key_id": access_key_id, "secret_access_key": secret_access_key}
        self._store: S3Store = S3Store(
            bucket,
            prefix=prefix or None,
            config=config,  # type: ignore[arg-type]  # a TypedDict whose keys are all optional
            client_options={
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
                "timeout": f"{max(1, round(timeout_s * 1000))}ms",
                "connect_timeout": f"{max(1, round(timeout_s * 1000))}ms",
            },
            retry_config={"max_retries": 0},
        )
        self._secrets = [secret for secret in (access_key_id, secret_access_key) if secret]
        self.address = f"s3://{bucket}/{prefix}" + (f" ({endpoint})" if endpoint else "")

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        import obstore

        with _with_our_errors(self._secrets):
            await obstore.put_async(
                self._store, name, chunks, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )

    async def get(self, name: str, start: int, size: int) -> bytes:
        import obstore

        data = bytearray()
        with _with_our_errors(self._secrets):
            found = await obstore.get_async(self._store, name, options={"range": (start, start + size)})
            # A server may send more than it was asked for, and more than it announced.
            async for chunk in found.stream(min_chunk_size=_CHUNK_BYTES):
                if len(data) + len(chunk) > size:
                    raise ObjectStoreError(f"it sent more than the {size} bytes that it was asked for")
                data += chunk
        return bytes(data)

    async def delete(self, names: Sequence[str]) -> None:
        import obstore

        with _with_our_errors(self._secrets, is_missing_fine=True):
            await obstore.delete_async(self._store, list(names))

    async def listed(self, prefix: str) -> list[StoredObject]:
        import obstore

        found: list[StoredObject] = []
        with _with_our_errors(self._secrets):
            async for page in obstore.list(self._store, prefix, chunk_size=1000):
                for one in page:
                    modified_ms = int(one["last_modified"].timestamp() * 1000)
                    found.append(StoredObject(one["path"], one["size"], modified_ms))
                if len(found) >= LIST_MAX:
                    break
        return found[:LIST_MAX]

    async def folders(self, prefix: str) -> list[str]:
        import obstore

        with _with_our_errors(self._secrets):
            found = await obstore.list_with_delimiter_async(self._store, prefix)
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found["common_prefixes"])[:LIST_MAX]

    async def close(self) -> None:
        pass


@contextmanager
def _with_our_errors(secrets: Sequence[str], *, is_missing_fine: bool = False) -> Iterator[None]:
    """Turns the library's errors into ours: short, and without what was told in confidence."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.NotFoundError, FileNotFoundError):
        if not is_missing_fine:
            raise ObjectMissing("there is no such object") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise ObjectStoreError(
            "it refused the credentials; see object_store_access_key_id and object_store_secret_access_key"
        ) from None
    except (exceptions.BaseError, ValueError) as error:
        raise ObjectStoreError(_first_line(str(error), secrets)) from None


def _first_line(text: str, secrets: Sequence[str]) -> str:
    """The first line of an error. After it the library shows its own structures, and what the server sent."""
    line = text.strip().split("\n", 1)[0].split("<?xml", 1)[0].strip()
    for secret in secrets:
        line = line.replace(secret, _HIDDEN)
    return line or "the store failed"
