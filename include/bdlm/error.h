/* bdlm/error.h - what every call of the library that can fail fills in. */
#ifndef BDLM_ERROR_H
#define BDLM_ERROR_H

typedef enum {
    BD_ERROR_NONE = 0,
    BD_ERROR_VALUE,     /* a bad value, shape, file content or configuration (E_VALUE) */
    BD_ERROR_TYPE,      /* wrong kind or dtype (E_TYPE) */
    BD_ERROR_STATE,     /* checkpoint or lifecycle (E_STATE) */
    BD_ERROR_EXHAUSTED, /* a stream of data ended early (E_EXHAUSTED) */
    BD_ERROR_SYSTEM,    /* the operating system said no: open, read, write, memory */
    BD_ERROR_USAGE,     /* a command line that makes no sense (exit status 2) */
    BD_ERROR_STOPPED,   /* nothing is wrong: somebody asked to stop while it waited */
} bd_error_kind;

typedef struct bd_error {
    bd_error_kind kind;
    char message[1000]; /* one line, no trailing newline */
} bd_error;

#endif
