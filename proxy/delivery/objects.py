"""Delivery to an object store of the S3 protocol, by obstore.

Endpoint, region and credentials are those of AWS's own programs: variables such as
`AWS_ENDPOINT_URL`, a web identity's token file, or what the machine offers; an address without TLS
needs `AWS_ALLOW_HTTP=true`. An object is there when its upload is complete, and not before.
"""

import os
import re
from datetime import timedelta
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from metrics.delivery.deliverer import DeliveryFailed, Part
from proxy.delivery.parts import BATCH_BYTES, content_of, name_of
from sasl.log_text import fit_for_log

ATTEMPT_SECONDS: Final = 30
"""Seconds after which one request, with its retries, has failed; it is tried again later."""

_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(/[!-~]*)?")


class ObjectSink:
    """Sink that uploads compressed objects below `date=…/proxy=…`."""

    batch_bytes = BATCH_BYTES
    closed_files_only = True

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def deliver(self, part: Part) -> int:
        """Upload an object, and return 0. Raises DeliveryFailed."""
        path = "/".join(name_of(part))
        try:
            store = open_store(self._bucket, self._prefix)
            obstore.put(store, path, content_of(part), use_multipart=False)
        except STORE_ERRORS as error:
            raise DeliveryFailed(explained(error)) from None
        return 0


STORE_ERRORS: Final = (BaseError, OSError, ValueError)
"""The exceptions of a store's operations."""


def open_store(bucket: str, prefix: str) -> S3Store:
    """Return the store of what is below a prefix, with the present credentials.

    Raises `STORE_ERRORS`.
    """
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if (address := os.environ.get(variable)) and not _ADDRESS.fullmatch(address):
            raise ValueError(f"{variable} must be https://HOST:PORT")  # obstore would panic
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={
            "timeout": timedelta(seconds=ATTEMPT_SECONDS),
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
        },
        retry_config={
            "max_retries": 3,
            "retry_timeout": timedelta(seconds=ATTEMPT_SECONDS),
        },
    )


def explained(error: Exception) -> str:
    """Return why an operation failed, without its address and what Rust adds in further lines."""
    return fit_for_log(str(error).split("\n", 1)[0].rpartition(" - ")[2], ())
