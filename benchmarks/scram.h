/* The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), without channel binding.
 *
 * One user per process: PBKDF2 runs once per salt, so that thousands of authentications measure
 * the server and not this program.
 */
#ifndef BENCHMARKS_SCRAM_H
#define BENCHMARKS_SCRAM_H

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCRAM_TEXT = 256,
    SCRAM_AUTH_MESSAGE = 3 * SCRAM_TEXT,
    SCRAM_SIGNATURE_BASE64 = 44, /* of 32 bytes */
};

struct scram_keys {
    char salt[SCRAM_TEXT]; /* base64, as the server sent it; empty before the first exchange */
    int iterations;
    uint8_t client_key[32], stored_key[32], server_key[32];
};

struct scram {
    char first_bare[SCRAM_TEXT];
    char nonce[32];
    char server_signature[SCRAM_SIGNATURE_BASE64 + 1];
};

static inline void hmac_sha256(const uint8_t key[32], const char *text, uint8_t out[32])
{
    HMAC(EVP_sha256(), key, 32, (const uint8_t *)text, strlen(text), out, NULL);
}

static inline void scram_derive(struct scram_keys *keys, const char *password, const char *salt,
                                int iterations)
{
    if (keys->iterations == iterations && !strcmp(keys->salt, salt))
        return;
    uint8_t raw[SCRAM_TEXT], salted[32];
    int padding = (int)(strlen(salt) - strcspn(salt, "="));
    int size = EVP_DecodeBlock(raw, (const uint8_t *)salt, (int)strlen(salt)) - padding;
    PKCS5_PBKDF2_HMAC(password, (int)strlen(password), raw, size, iterations, EVP_sha256(), 32, salted);
    hmac_sha256(salted, "Client Key", keys->client_key);
    hmac_sha256(salted, "Server Key", keys->server_key);
    SHA256(keys->client_key, 32, keys->stored_key);
    snprintf(keys->salt, sizeof keys->salt, "%s", salt);
    keys->iterations = iterations;
}

/* Writes the client's first message to `out`; returns its length. The nonce need not be secret
 * here, only different each time. */
static inline int scram_first(struct scram *s, const char *user, char out[SCRAM_TEXT])
{
    static uint64_t counter;
    snprintf(s->nonce, sizeof s->nonce, "benchmark%016llx", (unsigned long long)++counter);
    snprintf(s->first_bare, sizeof s->first_bare, "n=%.100s,r=%s", user, s->nonce);
    return snprintf(out, SCRAM_TEXT, "n,,%.200s", s->first_bare);
}

/* Writes the client's final message to `out`; returns its length, or -1 for a bad server message. */
static inline int scram_final(struct scram *s, struct scram_keys *keys, const char *password,
                              const char *server_first, char out[SCRAM_AUTH_MESSAGE])
{
    char nonce[SCRAM_TEXT], salt[SCRAM_TEXT], auth[SCRAM_AUTH_MESSAGE];
    int iterations;
    if (strlen(server_first) >= SCRAM_TEXT ||
        sscanf(server_first, "r=%[^,],s=%[^,],i=%d", nonce, salt, &iterations) != 3 ||
        strncmp(nonce, s->nonce, strlen(s->nonce)) != 0)
        return -1;
    scram_derive(keys, password, salt, iterations);

    uint8_t proof[32], signature[32];
    char proof_base64[SCRAM_SIGNATURE_BASE64 + 1];
    snprintf(auth, sizeof auth, "%s,%s,c=biws,r=%s", s->first_bare, server_first, nonce);
    hmac_sha256(keys->stored_key, auth, proof);
    for (int i = 0; i < 32; i++)
        proof[i] ^= keys->client_key[i];
    EVP_EncodeBlock((uint8_t *)proof_base64, proof, 32);
    hmac_sha256(keys->server_key, auth, signature);
    EVP_EncodeBlock((uint8_t *)s->server_signature, signature, 32);
    return snprintf(out, SCRAM_AUTH_MESSAGE, "c=biws,r=%s,p=%s", nonce, proof_base64);
}

static inline bool scram_verify(const struct scram *s, const char *server_final)
{
    return !strncmp(server_final, "v=", 2) &&
           !strncmp(server_final + 2, s->server_signature, SCRAM_SIGNATURE_BASE64);
}

#endif
