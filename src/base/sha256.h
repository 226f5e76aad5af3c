/* sha256.h - content hashes, from libcrypto. 64 hexadecimal digits and a NUL. */
#ifndef BD_BASE_SHA256_H
#define BD_BASE_SHA256_H

#include <stddef.h>

#include "base/error.h"

enum { BD_SHA256_TEXT = 65 };
typedef struct bd_sha256 bd_sha256;

bd_sha256 *bd_sha256_begin(void);
void bd_sha256_add(bd_sha256 *hash, const void *bytes, size_t size);
void bd_sha256_end(bd_sha256 *hash, char out[BD_SHA256_TEXT]); /* hash is gone afterwards */

void bd_sha256_bytes(const void *bytes, size_t size, char out[BD_SHA256_TEXT]);
bool bd_sha256_file(const char *path, char out[BD_SHA256_TEXT], bd_error *err);

#endif
