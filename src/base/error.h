/* error.h - how a function says that the world failed it.
 *
 * A function that can fail because of files, input, memory or peers takes a `bd_error *err` last and
 * returns false, NULL or a negative value after filling it in. The message names what, where, the
 * value found and the value wanted, on one line. A caller's mistake is an assertion instead.
 *
 *     bd_error err = {0};
 *     if (!bd_file_read(path, &bytes, &err))
 *         return bd_error_wrap(&err, "recipe %s", path);   // "recipe x.yaml: cannot open: ..."
 */
#ifndef BD_BASE_ERROR_H
#define BD_BASE_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "bdlm/error.h"

/* Fill in `err` (kind BD_ERROR_VALUE) and return false, so that callers can `return bd_fail(...)`. */
bool bd_fail(bd_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same with an explicit kind. */
bool bd_fail_as(bd_error *err, bd_error_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before the message that is already there; returns false. */
bool bd_error_wrap(bd_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
