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
"""Seconds after which one upload, with its retries, has failed; it is tried again later."""

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
        _check_endpoint()
        try:
            # made anew, so that credentials that were replaced are used
            store = S3Store(
                self._bucket,
                prefix=self._prefix or None,
                client_options={
                    "timeout": timedelta(seconds=ATTEMPT_SECONDS),
                    "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
                },
                retry_config={
                    "max_retries": 3,
                    "retry_timeout": timedelta(seconds=ATTEMPT_SECONDS),
                },
            )
            obstore.put(store, path, content_of(part), use_multipart=False)
        except (BaseError, OSError, ValueError) as error:
            raise DeliveryFailed(fit_for_log(_reason(error), ())) from None
        return 0


def _check_endpoint() -> None:
    """Refuse an endpoint that is no address, at which obstore panics. Raises DeliveryFailed."""
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if (address := os.environ.get(variable)) and not _ADDRESS.fullmatch(address):
            raise DeliveryFailed(f"{variable} must be https://HOST:PORT")


def _reason(error: Exception) -> str:
    """Return why an upload failed, without its address and what Rust adds in further lines."""
    return str(error).split("\n", 1)[0].rpartition(" - ")[2]
