#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fill(bd_error *err, bd_error_kind kind, const char *format, va_list list)
{
    if (!err)
        return;
    err->kind = kind;
    vsnprintf(err->message, sizeof err->message, format, list);
    // One line, whatever bytes a hostile file put into a name.
    for (char *c = err->message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

bool bd_fail(bd_error *err, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fill(err, BD_ERROR_VALUE, format, list);
    va_end(list);
    return false;
}

bool bd_fail_as(bd_error *err, bd_error_kind kind, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fill(err, kind, format, list);
    va_end(list);
    return false;
}

bool bd_error_wrap(bd_error *err, const char *format, ...)
{
    if (!err)
        return false;
    bd_error outer;
    va_list list;
    va_start(list, format);
    fill(&outer, err->kind, format, list);
    va_end(list);
    size_t used = strlen(outer.message);
    snprintf(outer.message + used, sizeof outer.message - used, ": %.900s", err->message);
    outer.kind = err->kind ? err->kind : BD_ERROR_VALUE;
    *err = outer;
    return false;
}
