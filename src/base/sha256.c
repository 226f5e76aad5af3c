#include "base/sha256.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdio.h>

#include "base/file.h"

bd_sha256 *bd_sha256_begin(void)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL);
    assert(ok);
    (void)ok;
    return (bd_sha256 *)context;
}

void bd_sha256_add(bd_sha256 *hash, const void *bytes, size_t size)
{
    EVP_DigestUpdate((EVP_MD_CTX *)hash, bytes, size);
}

void bd_sha256_end(bd_sha256 *hash, char out[BD_SHA256_TEXT])
{
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};
    EVP_DigestFinal_ex((EVP_MD_CTX *)hash, digest, NULL);
    EVP_MD_CTX_free((EVP_MD_CTX *)hash);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void bd_sha256_bytes(const void *bytes, size_t size, char out[BD_SHA256_TEXT])
{
    bd_sha256 *hash = bd_sha256_begin();
    bd_sha256_add(hash, bytes, size);
    bd_sha256_end(hash, out);
}

bool bd_sha256_file(const char *path, char out[BD_SHA256_TEXT], bd_error *err)
{
    bd_map map;
    if (!bd_map_open(&map, path, err))
        return false;
    bd_sha256_bytes(map.data, map.size, out);
    bd_map_close(&map);
    return true;
}
