/* answers.h - prompts with known answers: how many does a model give word for word?
 *
 * Greedy, through the engine that fits the model: plain decoding with a KV cache for a causal one,
 * block rollout with exact caches for block diffusion.
 *
 *     bd_answer_options options = {.tokenizer = tokenizer, .most_tokens = 256, .context = 2048};
 *     bd_answer_score score;
 *     bd_evaluate_answers(model, "test.jsonl", &options, &score, arena, &err);
 */
#ifndef BD_TRAIN_ANSWERS_H
#define BD_TRAIN_ANSWERS_H

#include "base/progress.h"
#include "diffusion/generate.h"
#include "format/chat.h"

/* One record and what became of it; strings live during the call only. */
typedef struct {
    int64_t line;
    const char *wanted, *got; /* white space around them does not count */
    bool exact;               /* they are the same */
    bool begins;              /* got begins with wanted */
    int64_t tokens, forwards;
} bd_answer;

typedef struct {
    const bd_tokenizer *tokenizer;
    const bd_chat *chat; /* applies its template; NULL: prompts as they are */
    int64_t most_tokens, context;
    int64_t limit;                                     /* records read at most; 0: all */
    const bd_rollout_options *rollout;                 /* block diffusion; NULL: the defaults */
    bd_progress *progress;                             /* counts records; NULL: none */
    void (*told)(void *self, const bd_answer *answer); /* NULL: not wanted */
    void *self;
} bd_answer_options;

typedef struct {
    int64_t records, exact, begins;
    int64_t tokens, forwards; /* forwards: passes of the model, those for the prompts included */
    double seconds;
} bd_answer_score;

/* Records need an answer: prompt and completion, or messages that end with the assistant's. An
 * error names file and line. */
bool bd_evaluate_answers(bd_model *model, const char *path, const bd_answer_options *options,
                         bd_answer_score *score, bd_arena *arena, bd_error *err);

#endif
