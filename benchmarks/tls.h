/* The client's side of TLS on a non-blocking socket, with the manners of send(2) and recv(2).
 *
 * One server per process: the session that it gave last is offered to it again, if that is wanted.
 */
#ifndef BENCHMARKS_TLS_H
#define BENCHMARKS_TLS_H

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls_client {
    SSL_CTX *context; /* NULL: TLS is not spoken */
    bool resume;
    SSL_SESSION *session; /* the last one given; NULL before */
};

static struct tls_client tls;

static inline int tls_keep_session(SSL *ssl, SSL_SESSION *session)
{
    (void)ssl;
    SSL_SESSION_free(tls.session);
    tls.session = session;
    return 1; /* it is ours now */
}

/* Trusts the certificates in a PEM file, for this IP address only. */
static inline bool tls_begin(const char *ca_file, const char *ip_address)
{
    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes without MSG_NOSIGNAL */
    tls.context = SSL_CTX_new(TLS_client_method());
    if (!tls.context || SSL_CTX_load_verify_file(tls.context, ca_file) != 1)
        return false;
    SSL_CTX_set_verify(tls.context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_read_ahead(tls.context, 1);
    /* A write that is repeated has the same bytes, but not at the same address. */
    SSL_CTX_set_mode(tls.context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(tls.context,
                                   SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(tls.context, tls_keep_session);
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_CTX_get0_param(tls.context), ip_address) == 1;
}

/* Returns NULL if there is no memory. */
static inline SSL *tls_open(int fd)
{
    SSL *ssl = SSL_new(tls.context);
    if (!ssl || SSL_set_fd(ssl, fd) != 1)
        return NULL;
    SSL_set_connect_state(ssl);
    if (tls.resume && tls.session)
        SSL_set_session(ssl, tls.session);
    return ssl;
}

/* As send and recv have it: 0 is the end, -1 with EAGAIN means to come again. */
static inline ssize_t tls_outcome(SSL *ssl, int result, size_t n)
{
    if (result == 1)
        return (ssize_t)n;
    int failure = errno;
    switch (SSL_get_error(ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        errno = failure;
        return failure ? -1 : 0;
    default:
        errno = EPROTO;
        return -1;
    }
}

/* Returns 1 when the handshake is done. */
static inline ssize_t tls_shake_hands(SSL *ssl)
{
    ERR_clear_error();
    return tls_outcome(ssl, SSL_do_handshake(ssl), 1);
}

/* All or nothing; after EAGAIN the same bytes must be given again. */
static inline ssize_t tls_send(SSL *ssl, const void *data, size_t size)
{
    size_t n = 0;
    ERR_clear_error();
    int result = SSL_write_ex(ssl, data, size, &n);
    return tls_outcome(ssl, result, n);
}

/* May leave bytes behind that poll does not know of: see SSL_has_pending. */
static inline ssize_t tls_receive(SSL *ssl, void *data, size_t size)
{
    size_t n = 0;
    ERR_clear_error();
    int result = SSL_read_ex(ssl, data, size, &n);
    return tls_outcome(ssl, result, n);
}

/* Says close_notify; without it OpenSSL would not use the session again. */
static inline void tls_close(SSL *ssl)
{
    ERR_clear_error();
    SSL_shutdown(ssl);
    SSL_free(ssl);
}

#endif
