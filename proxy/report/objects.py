"""Place of a report in an object store, by obstore; settings as for the delivery of events."""

from itertools import chain, islice
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import NotFoundError
from obstore.store import S3Store

from metrics.report.write import JSON_NAME
from proxy.delivery.objects import STORE_ERRORS, explained, open_store
from proxy.report.place import (
    MAX_TABLE_FILES,
    PIECE_BYTES,
    TABLE_FILE,
    MissingError,
    OpenFile,
    TableFile,
    UnusableReportError,
    too_large,
)

if TYPE_CHECKING:
    from obstore import GetOptions


class ObjectStore:
    """Objects below a prefix of a bucket.

    One store is kept, which keeps its connections and renews credentials that expire (a web
    identity's, or a machine's); after an error a new one takes its place.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._kept: S3Store | None = None

    def signature(self) -> object:
        """Return the ETag, size and time of report.json, which a run replaces last."""
        try:
            found = obstore.head(self._store(), JSON_NAME)
        except STORE_ERRORS as error:
            raise self._unreadable(JSON_NAME, error) from None
        return (found["e_tag"], found["size"], found["last_modified"])

    def read(self, path: str, most: int) -> bytes:
        """Return an object of at most so many bytes."""
        try:
            answer = obstore.get(self._store(), path)
            if answer.meta["size"] <= most:
                return bytes(answer.bytes())
        except STORE_ERRORS as error:
            raise self._unreadable(path, error) from None
        raise too_large(path, most)

    def tables(self, folder: str) -> dict[str, TableFile]:
        """List objects."""
        try:
            found = chain.from_iterable(obstore.list(self._store(), prefix=folder))
            listed = (
                (one["path"].removeprefix(f"{folder}/"), TableFile(one["size"], one["e_tag"]))
                for one in found
            )
            return dict(
                islice((one for one in listed if TABLE_FILE.fullmatch(one[0])), MAX_TABLE_FILES)
            )
        except STORE_ERRORS as error:
            raise self._unreadable(folder, error) from None

    def open(self, path: str, listed: TableFile) -> OpenFile:
        """Return an object that is read by ranges, all of them of the version that was listed."""
        store = self._store()
        try:
            found = obstore.head(store, path)
        except STORE_ERRORS as error:
            raise self._unreadable(path, error) from None
        if found["e_tag"] != listed.version:
            raise UnusableReportError(f"{path} was replaced since the report was read")
        return _Object(store, path, listed)

    def _store(self) -> S3Store:
        store = self._kept
        if store is None:
            try:
                store = self._kept = open_store(self._bucket, self._prefix)
            except STORE_ERRORS as error:
                raise UnusableReportError(explained(error)) from None
        return store

    def _unreadable(self, path: str, error: Exception) -> UnusableReportError:
        if isinstance(error, NotFoundError | FileNotFoundError):
            return MissingError(f"{path} is not there")
        self._kept = None
        return UnusableReportError(f"{path} cannot be read: {explained(error)}")


class _Object:
    def __init__(self, store: S3Store, path: str, listed: TableFile) -> None:
        self._store = store
        self._path = path
        self._version = listed.version
        self.size = listed.size

    def read(self, offset: int) -> bytes:
        options: GetOptions = {"range": (offset, min(offset + PIECE_BYTES, self.size))}
        if self._version is not None:
            options["if_match"] = self._version
        try:
            return bytes(obstore.get(self._store, self._path, options=options).bytes())
        except STORE_ERRORS as error:
            raise OSError(explained(error)) from None

    def close(self) -> None:
        pass
