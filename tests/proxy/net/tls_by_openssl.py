"""A client by OpenSSL itself: Python's `ssl` sends no key updates (RFC 8446 section 4.6.3)."""

import _ssl
import ctypes
from typing import Final

_POINTER: Final = ctypes.c_void_p
_TYPES: Final = {
    "TLS_client_method": (_POINTER, ()),
    "SSL_CTX_new": (_POINTER, (_POINTER,)),
    "SSL_new": (_POINTER, (_POINTER,)),
    "SSL_free": (None, (_POINTER,)),
    "SSL_CTX_free": (None, (_POINTER,)),
    "SSL_set_bio": (None, (_POINTER, _POINTER, _POINTER)),
    "SSL_connect": (ctypes.c_int, (_POINTER,)),
    "SSL_do_handshake": (ctypes.c_int, (_POINTER,)),
    "SSL_key_update": (ctypes.c_int, (_POINTER, ctypes.c_int)),
    "SSL_write": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
    "BIO_new": (_POINTER, (_POINTER,)),
    "BIO_s_mem": (_POINTER, ()),
    "BIO_read": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
    "BIO_write": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
}


def _openssl() -> ctypes.CDLL:
    """The OpenSSL that Python itself has."""
    library = ctypes.CDLL(_ssl.__file__)
    for name, (result, arguments) in _TYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class KeyUpdater:
    """A client that verifies nobody, in memory."""

    def __init__(self) -> None:
        self._openssl = openssl = _openssl()
        self._context = openssl.SSL_CTX_new(openssl.TLS_client_method())
        self._ssl = openssl.SSL_new(self._context)
        self._incoming, self._outgoing = (openssl.BIO_new(openssl.BIO_s_mem()) for _ in range(2))
        openssl.SSL_set_bio(self._ssl, self._incoming, self._outgoing)

    def shakes_hands(self, received: bytes) -> bool:
        """Take what the server said; whether the handshake is done."""
        self._openssl.BIO_write(self._incoming, received, len(received))
        return bool(self._openssl.SSL_connect(self._ssl) == 1)

    def update_keys(self, count: int = 1, *, answer: bool) -> bytes:
        """What updates its own key so often, and wants the other's updated."""
        for _ in range(count):
            assert self._openssl.SSL_key_update(self._ssl, int(answer)) == 1
            assert self._openssl.SSL_do_handshake(self._ssl) == 1
        return self.sent()

    def encrypted(self, plain: bytes) -> bytes:
        """One record of data."""
        assert self._openssl.SSL_write(self._ssl, plain, len(plain)) == len(plain)
        return self.sent()

    def sent(self) -> bytes:
        """All that it has to say."""
        said = b""
        buffer = ctypes.create_string_buffer(65_536)
        while (count := self._openssl.BIO_read(self._outgoing, buffer, 65_536)) > 0:
            said += buffer.raw[:count]
        return said

    def close(self) -> None:
        """Give the memory back."""
        self._openssl.SSL_free(self._ssl)
        self._openssl.SSL_CTX_free(self._context)
