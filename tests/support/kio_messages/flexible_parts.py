"""Bases of the parts of flexible messages (KIP-482) that kio lacks, in kio's style."""

from typing import ClassVar

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader


class InRequest:
    """Base of all parts of a request."""

    __slots__ = ()
    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader


class InResponse:
    """Base of all parts of a response."""

    __slots__ = ()
    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
