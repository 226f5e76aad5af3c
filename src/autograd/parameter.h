/* parameter.h - a trainable or frozen tensor with a name.
 *
 * A parameter knows where its values are (mapped from a file in any float dtype, or fp32 in memory
 * when it is trained), where its gradient is, and the packed panels that products use. Panels are
 * remade when the values changed (`version` moved), once per update, not per use.
 *
 *     bd_parameter weight;
 *     bd_parameter_map(&weight, "fc.weight", 2, (int64_t[]){out, in}, BD_BF16, bytes);
 *     if (!bd_parameter_train(&weight, &err)) ...      // now fp32 in memory, with a gradient
 *     ... weight.value changes ...
 *     bd_parameter_changed(&weight);                   // the next use packs it again
 */
#ifndef BD_AUTOGRAD_PARAMETER_H
#define BD_AUTOGRAD_PARAMETER_H

#include "base/arena.h"
#include "tensor/matmul.h"

enum { BD_PARAMETER_RANK = 5 };

typedef struct bd_parameter {
    const char *name; /* as in the file; whoever made the parameter keeps the text alive */
    int rank;
    int64_t shape[BD_PARAMETER_RANK];
    int64_t count;    /* product of shape */
    bd_dtype dtype;   /* of data */
    const void *data; /* current values; equals `value` when the parameter is in memory as fp32 */
    float *value;     /* writable fp32 values, or NULL when mapped */
    float *gradient;  /* [count], or NULL: frozen */
    uint64_t version; /* raised by whoever changes the values */
    /* Panels for y = x W^T and dx = dy W, kept per compute dtype change; owned by the parameter.
     * A vector has no panels: its forward storage holds the fp32 copy of bd_parameter_values(). */
    bd_packed forward, backward;
    uint64_t forward_version, backward_version; /* version packed + 1; 0: never */
    void *forward_storage, *backward_storage;
    size_t forward_bytes, backward_bytes;
} bd_parameter;

/* Trainable tensors of a model, in file order. */
typedef struct {
    bd_parameter **items;
    int64_t count;
} bd_parameters;

/* A frozen parameter over values that exist already, for instance in a mapped file. */
void bd_parameter_map(bd_parameter *p, const char *name, int rank, const int64_t *shape,
                      bd_dtype dtype, const void *data);
/* A frozen parameter with fp32 values of its own, all `fill`. */
bool bd_parameter_create(bd_parameter *p, const char *name, int rank, const int64_t *shape,
                         float fill, bd_error *err);

/* Initial weights: writable values become N(0, deviation^2). Value i of the tensor numbered
 * `tensor` is a function of (seed, tensor, i) alone, from the stream BD_STREAM_INITIAL. */
void bd_parameter_normal(bd_parameter *p, uint64_t seed, int64_t tensor, double deviation);

/* The same, uniform in [-bound, bound). */
void bd_parameter_uniform(bd_parameter *p, uint64_t seed, int64_t tensor, double bound);

/* Panels of a rank-2 parameter [out, in] in the given compute dtype, packed now if needed. */
const bd_packed *bd_parameter_forward(bd_parameter *p, bd_dtype compute);
const bd_packed *bd_parameter_backward(bd_parameter *p, bd_dtype compute);

/* Make the values writable fp32 (copied from `data` once) with a zeroed gradient. */
bool bd_parameter_train(bd_parameter *p, bd_error *err);
/* Drop the gradient and the backward panel; the values stay as they are. */
void bd_parameter_freeze(bd_parameter *p);
void bd_parameter_free(bd_parameter *p); /* everything it owns; not the struct */
void bd_parameter_changed(bd_parameter *p);

/* fp32 view of the values of a small (vector) parameter: the data itself or a cached copy. */
const float *bd_parameter_values(bd_parameter *p);

bd_parameter *bd_parameters_find(const bd_parameters *list, const char *name);
void bd_parameters_zero_gradients(const bd_parameters *list);
int64_t bd_parameters_total(const bd_parameters *list);

#endif
