#include "draft/variant.h"

#include <stdio.h>
#include <string.h>

static const bd_draft_variant *const table[] = {
    &bd_draft_dflash, &bd_draft_dspark, &bd_draft_domino, &bd_draft_dflash2, &bd_draft_lilicorr};
enum { VARIANTS = sizeof table / sizeof table[0] };

const bd_draft_variant *bd_draft_variant_at(int index)
{
    return index >= 0 && index < VARIANTS ? table[index] : NULL;
}

const bd_draft_variant *bd_draft_variant_find(const char *projector_type, bd_error *err)
{
    if (!projector_type || !projector_type[0])
        return table[0];
    char names[200] = "";
    size_t used = 0;
    for (int i = 0; i < VARIANTS; i++) {
        if (!strcmp(table[i]->projector_type, projector_type))
            return table[i];
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, i ? ", %s" : "%s",
                                     table[i]->projector_type);
    }
    bd_fail(err, "projector_type is \"%.60s\", one of %s expected", projector_type, names);
    return NULL;
}

int64_t bd_draft_variant_tokens(const bd_draft_variant *variant, int64_t block_size)
{
    return block_size - 1 + variant->label_shift;
}

int64_t bd_draft_variant_first_slot(const bd_draft_variant *variant)
{
    return 1 - variant->label_shift;
}
