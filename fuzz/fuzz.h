/* fuzz.h - what the entry points share. Each fuzz_NAME.c holds one LLVMFuzzerTestOneInput: it gives
 * the bytes to a reader, and whatever the reader accepts must keep the reader's promises. */
#ifndef BD_FUZZ_H
#define BD_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A broken promise ends the program, so that the fuzzer keeps the input. */
#define fuzz_promise(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* The bytes as a file that needs no folder: its name, and its descriptor to be closed. */
static inline int fuzz_file(const uint8_t *data, size_t size, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_promise(fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, data + done, size - done);
        fuzz_promise(n > 0);
        done += (size_t)n;
    }
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
