#include "fuzz.h"

#include <string.h>

#include "format/safetensors.h"

/* Every byte of an accepted tensor can be read, aligned, and is found by its name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = fuzz_file(data, size, path);
    bd_error err = {0};
    bd_safetensors *file = bd_safetensors_open(path, &err);
    fuzz_promise(file || err.message[0]);
    volatile uint8_t sum = 0;
    for (int64_t i = 0; file && i < bd_safetensors_count(file); i++) {
        const bd_tensor *tensor = bd_safetensors_at(file, i);
        fuzz_promise(bd_safetensors_find(file, tensor->name) == tensor);
        fuzz_promise(!tensor->count || (uintptr_t)tensor->data % bd_dtype_size(tensor->dtype) == 0);
        const uint8_t *bytes = tensor->data;
        for (size_t b = 0; b < (size_t)tensor->count * bd_dtype_size(tensor->dtype); b++)
            sum = (uint8_t)(sum + bytes[b]);
        if (!bd_dtype_is_float(tensor->dtype)) {
            int32_t *ints = calloc((size_t)tensor->count + 1, sizeof *ints);
            if (!bd_safetensors_read_i32(file, tensor->name, tensor->rank, tensor->shape, ints,
                                         &err))
                fuzz_promise(tensor->dtype == BD_I64);
            free(ints);
        }
    }
    bd_safetensors_close(file);
    close(fd);
    return 0;
}
