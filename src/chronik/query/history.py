"""Search indexes that the pipeline published: what a node's own index no longer holds is found there.

A published index never changes; a new one gets a folder of its own and is named in `current.json`. So it is
opened once, its files are checked when they are first seen, and every search looks whether there is a newer
one. Searches read it up to the offset where the node's own index begins, so nothing is found twice.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from chronik.published.documents import FORMAT, read_manifest
from chronik.published.paths import Paths
from chronik.query.index import IndexDamaged, IndexSnapshot, open_index, verify

__all__ = ["History", "PublishedIndex"]

log = logging.getLogger(__name__)


class PublishedIndex:
    def __init__(self, path: Path, ends: Mapping[int, int], view: Path) -> None:
        """`view` is a folder of our own for links to its files: tantivy makes a lock file beside them,
        and what is published is only read here."""
        self.path = path
        self.ends = ends
        """For each partition the first offset that it does not hold."""
        try:
            paths = tuple(Paths.load(path))
            shutil.rmtree(view, ignore_errors=True)
            view.mkdir(parents=True)
            for file in path.iterdir():
                if file.suffix != ".lock":
                    (view / file.name).symlink_to(file.resolve())
            index = open_index(view)
        except (ValueError, OSError) as error:
            raise IndexDamaged(str(error)) from error
        index.config_reader("manual")
        self.snapshot = IndexSnapshot(index, index.searcher(), paths, ends)


class History:
    """The published indexes under one folder. Used by several threads."""

    def __init__(self, root: Path, views: Path) -> None:
        self._root = root
        self._views = views
        self._open: dict[str, PublishedIndex] = {}
        self._checked: dict[str, set[tuple[str, int, int]]] = {}
        self._lock = threading.Lock()

    def find(self, topic: str, topic_id: str) -> PublishedIndex | None:
        """The index published for this topic, or None. Raises IndexDamaged."""
        folder = self._root / topic
        with self._lock:
            try:
                manifest = read_manifest(folder)
            except (ValueError, OSError) as error:
                raise IndexDamaged(f"its manifest cannot be read: {error}") from error
            if manifest is None or manifest.topic_id != topic_id:
                self._open.pop(topic, None)
                return None
            if manifest.format != FORMAT:
                raise IndexDamaged(
                    f"it has format {manifest.format} and this release reads {FORMAT}: "
                    "publish it again with this release's `chronik pipeline index`, or upgrade the nodes"
                )
            path = folder / manifest.path
            known = self._open.get(topic)
            if known is None or known.path != path:
                self._check(topic, path)
                ends = {int(number): end for number, end in manifest.offsets.items() if number.isdecimal()}
                known = self._open[topic] = PublishedIndex(path, ends, self._views / topic)
                log.info("searches of %s use the published index %s", topic, path)
            return known

    def _check(self, topic: str, path: Path) -> None:
        """Check the files that earlier published indexes did not have. Others keep their names and times."""
        try:
            self._checked[topic] = verify(path, self._checked.get(topic, set()))
        except OSError as error:
            raise IndexDamaged(str(error)) from error
