"""Place of a report in an object store, by obstore; settings as for the delivery of events."""

import asyncio
from itertools import chain, islice

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
    UnusableReportError,
    too_large,
)


class ObjectStore:
    """Objects below a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def signature(self) -> object:
        """Return the ETag, size and time of report.json, which a run replaces last."""
        try:
            found = obstore.head(self._store(), JSON_NAME)
        except STORE_ERRORS as error:
            raise _unreadable(JSON_NAME, error) from None
        return (found["e_tag"], found["size"], found["last_modified"])

    def read(self, path: str, most: int) -> bytes:
        """Return an object of at most so many bytes."""
        try:
            answer = obstore.get(self._store(), path)
            if answer.meta["size"] <= most:
                return bytes(answer.bytes())
        except STORE_ERRORS as error:
            raise _unreadable(path, error) from None
        raise too_large(path, most)

    def tables(self, folder: str) -> dict[str, int]:
        """List objects."""
        try:
            found = chain.from_iterable(obstore.list(self._store(), prefix=folder))
            paths = ((one["path"].removeprefix(f"{folder}/"), one["size"]) for one in found)
            return dict(
                islice((one for one in paths if TABLE_FILE.fullmatch(one[0])), MAX_TABLE_FILES)
            )
        except STORE_ERRORS as error:
            raise _unreadable(folder, error) from None

    def open(self, path: str) -> OpenFile:
        """Return an object that is read by ranges."""
        store = self._store()
        try:
            return _Object(store, path, obstore.head(store, path)["size"])
        except STORE_ERRORS as error:
            raise _unreadable(path, error) from None

    def _store(self) -> S3Store:
        try:
            return open_store(self._bucket, self._prefix)
        except STORE_ERRORS as error:
            raise UnusableReportError(explained(error)) from None


class _Object:
    def __init__(self, store: S3Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self.size = size

    async def read(self, offset: int) -> bytes:
        end = min(offset + PIECE_BYTES, self.size)
        try:
            piece = await asyncio.to_thread(
                obstore.get_range, self._store, self._path, start=offset, end=end
            )
        except STORE_ERRORS as error:
            raise OSError(explained(error)) from None
        return bytes(piece)

    def close(self) -> None:
        pass


def _unreadable(path: str, error: Exception) -> UnusableReportError:
    if isinstance(error, NotFoundError | FileNotFoundError):
        return MissingError(f"{path} is not there")
    return UnusableReportError(f"{path} cannot be read: {explained(error)}")
