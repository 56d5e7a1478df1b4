"""A folder on any file system that Spark knows: local, HDFS, an object store. Runs on the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chronik.model import ChronikError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AlreadyThere(ChronikError):
    """Raised if somebody else wrote this file first."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    """Relative to the folder."""
    size_bytes: int
    modified_ms: int


class Folder:
    """Paths are relative, with slashes; everything goes through Hadoop's file system classes in the JVM."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        configuration = spark._jsc.hadoopConfiguration()
        path = jvm.org.apache.hadoop.fs.Path(root)
        self._fs = path.getFileSystem(configuration)
        self._root = self._fs.makeQualified(path)
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), configuration)

    def uri(self, path: str = "") -> str:
        return str(self._path(path).toString())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def read_json(self, path: str) -> Any:
        stream = self._fs.open(self._path(path))
        try:
            return json.loads(bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)))
        finally:
            stream.close()

    def write_json(self, path: str, value: object, *, replace: bool) -> None:
        """Write a file that is there wholly or not at all; AlreadyThere unless it may be replaced."""
        temporary = self._path(f"{path}.new")
        self._fs.mkdirs(self._path(path).getParent())
        stream = self._fs.create(temporary, True)
        try:
            stream.write(json.dumps(value, indent=1).encode())
            stream.hsync()
        finally:
            stream.close()
        option = self._jvm.org.apache.hadoop.fs.Options.Rename
        choice = option.OVERWRITE if replace else option.NONE
        array = self._gateway_array(option, choice)
        try:
            self._context.rename(temporary, self._path(path), array)
        except Exception as error:
            if not replace and self.exists(path):
                raise AlreadyThere(f"{self.uri(path)} exists already") from error
            raise

    def _gateway_array(self, kind: Any, value: Any) -> Any:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        assert gateway is not None
        array = gateway.new_array(kind, 1)
        array[0] = value
        return array

    def files(self, path: str = "") -> Iterator[FileInfo]:
        """Every file below a folder, hidden ones (checksums, markers) left out."""
        if not self.exists(path):
            return
        prefix = len(self.uri().rstrip("/")) + 1
        found = self._fs.listFiles(self._path(path), True)
        while found.hasNext():
            status = found.next()
            where = str(status.getPath().toString())[prefix:]
            if not where.rpartition("/")[2].startswith((".", "_")):
                yield FileInfo(where, int(status.getLen()), int(status.getModificationTime()))

    def names(self, path: str) -> list[str]:
        """What lies directly in a folder."""
        if not self.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in self._fs.listStatus(self._path(path)))

    def move(self, source: str, target: str) -> None:
        """Move a file; a second attempt finds it moved and is content."""
        if self.exists(source):
            self._fs.mkdirs(self._path(target).getParent())
            if not self._fs.rename(self._path(source), self._path(target)) and not self.exists(target):
                raise ChronikError(f"{self.uri(source)} could not be moved to {self.uri(target)}")

    def remove(self, path: str) -> None:
        self._fs.delete(self._path(path), True)
