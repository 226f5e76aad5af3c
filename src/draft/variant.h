/* variant.h - what tells one drafter from another.
 *
 * Every drafter of the family reads blocks the same way with the same backbone. What differs is an
 * entry of the table in variant.c: which token a slot predicts, the tensors of its head, its fields
 * in config.json, its loss, and how its slots become tokens. A new variant is one file and one
 * entry.
 *
 *     const bd_draft_variant *variant = bd_draft_variant_find("dflash", &err);
 */
#ifndef BD_DRAFT_VARIANT_H
#define BD_DRAFT_VARIANT_H

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"

struct bd_draft;
struct bd_draft_config;
struct bd_draft_builder;
struct bd_draft_objective;
struct bd_draft_step;
struct bd_draft_loss;
struct bd_draft_decoding;

typedef struct bd_draft_variant {
    const char *projector_type; /* the table's key; absent in a file means the first entry */
    const char *architecture;   /* "architectures" of config.json */
    int label_shift;            /* 0: slot k predicts the token at a + k; 1: at a + k + 1 */
    bool needs_teacher;         /* its loss always reads the target's distribution */
    bool ignores_distillation;  /* `distill` means nothing to it */
    bool validated_plain;       /* the reference's validation ignores its head (validate.h) */
    bool reads_context; /* it decodes with the newest context row and all slots of a block */

    /* Other spellings of tensor names when reading: pairs of a prefix met in files and what stands
     * for it here, NULL at the end. Where a file has both, ours counts. */
    const char *const *aliases;

    /* Fields of its own in dflash_config, NULL at the end; any other name there is refused. */
    const char *const *fields;
    bool (*read_config)(struct bd_draft_config *config, json_t *root, const char *where,
                        bd_error *err);
    /* Adds its fields for an export, to the file's object and to the dflash_config inside. */
    void (*write_config)(const struct bd_draft_config *config, json_t *root, json_t *nested);

    /* Whether a description that is otherwise complete makes sense for this variant; NULL: always.
     * `where` is the file or the recipe section. */
    bool (*check_config)(const struct bd_draft_config *config, const char *where, bd_error *err);

    /* Lists the tensors of its head behind those of the backbone (bd_draft_builder_add). */
    void (*build)(struct bd_draft *draft, struct bd_draft_builder *builder);
    /* Starting values that the list of tensors cannot say; NULL: none. */
    void (*initialize)(struct bd_draft *draft, uint64_t seed);

    /* Refuses options of the objective that do not go together; whether it then reads the teacher
     * besides what `distill` needs. NULL: nothing to refuse, no. */
    bool (*check_objective)(const struct bd_draft_config *config,
                            const struct bd_draft_objective *objective, bd_error *err);
    bool (*reads_teacher)(const struct bd_draft_objective *objective);

    /* The loss of one step: fills `loss`, and in a recording step leaves the gradient of the
     * weighted sum in step->hidden->gradient and in its own parameters (step.h). */
    void (*loss)(struct bd_draft_step *step, struct bd_draft_loss *loss);
    /* Its metrics in a step without any block, where `loss` is not called; NULL: none. */
    void (*idle)(const struct bd_draft_objective *objective, struct bd_draft_loss *loss);

    /* From a block's hidden states to proposed tokens (session.h). */
    void (*decode)(struct bd_draft_decoding *decoding);
} bd_draft_variant;

/* NULL or "" finds plain DFlash; an unknown name is an error that lists the table's keys. */
const bd_draft_variant *bd_draft_variant_find(const char *projector_type, bd_error *err);

/* One entry after the other; NULL past the end. */
const bd_draft_variant *bd_draft_variant_at(int index);

/* Tokens a block gives at most: bs - 1 + label_shift; and the first slot that gives one. */
int64_t bd_draft_variant_tokens(const bd_draft_variant *variant, int64_t block_size);
int64_t bd_draft_variant_first_slot(const bd_draft_variant *variant);

extern const bd_draft_variant bd_draft_dflash, bd_draft_dspark, bd_draft_domino, bd_draft_dflash2,
    bd_draft_lilicorr;

#endif
