/* layout.h - which tensors a model of a given description has, under which names.
 *
 * Opening, making and saving walk the same list. Source: golden/draft "Targets".
 *
 *     int64_t count = bd_model_layout(&config, NULL);
 *     bd_model_tensor *tensors = calloc((size_t)count, sizeof *tensors);
 *     bd_model_layout(&config, tensors);               // embedding, layers in order, norm, head
 */
#ifndef BD_MODEL_LAYOUT_H
#define BD_MODEL_LAYOUT_H

#include "model/model.h"

typedef enum { BD_INITIAL_NORMAL, BD_INITIAL_ONE, BD_INITIAL_ZERO } bd_initial;

typedef struct {
    char name[80];
    int rank;
    int64_t shape[2];
    bd_initial initial;
    size_t place; /* offset of the bd_parameter * in bd_model */
} bd_model_tensor;

/* The number of tensors; filled in as well unless `out` is NULL. A tied head is not one of them. */
int64_t bd_model_layout(const bd_model_config *config, bd_model_tensor *out);

#endif
