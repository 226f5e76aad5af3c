/* own_model - on-policy distillation of a model that bdlm knows nothing about.
 *
 *     own_model CASE.safetensors CASE.json
 *
 * Uses only the installed headers. The "model" is a recording: a file of scores, targets and
 * weights as a framework of its own would have them after a rollout. Its student is causal inside:
 * it has one row more than there are tokens, row p made of the tokens before p, the last about a
 * token that was never generated; so the program aligns rows with tokens itself before handing them
 * over. The loss of the file's case is printed beside what the file says it has to be; exit status
 * 1 if they differ. Files are read without any library, as small as such a reader can be.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bdlm/distill.h>

// --- reading the recording ----------------------------------------------------------------------

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    size_t room = 1 << 20;
    char *data = calloc(room + 1, 1);
    *size = data ? fread(data, 1, room, file) : 0;
    fclose(file);
    if (*size < 8) {
        fprintf(stderr, "%s: no recording\n", path);
        exit(1);
    }
    return data;
}

/* A tensor of a safetensors file: its shape, and where its values are. */
static const void *tensor(const char *data, size_t size, const char *name, int64_t *shape)
{
    unsigned long long header, begin, end;
    char key[64];
    memcpy(&header, data, 8);
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = header < size - 8 ? strstr(data + 8, key) : NULL;
    const char *dims = at ? strstr(at, "\"shape\":[") : NULL;
    const char *offsets = at ? strstr(at, "\"data_offsets\":[") : NULL;
    if (!dims || !offsets || sscanf(offsets, "\"data_offsets\":[%llu,%llu", &begin, &end) != 2 ||
        begin > end || end > size - 8 - header) {
        fprintf(stderr, "no tensor %s\n", name);
        exit(1);
    }
    char *next = (char *)dims + strlen("\"shape\":[");
    for (int i = 0; i < 3; i++) {
        shape[i] = strtoll(next, &next, 10);
        next += *next == ',';
    }
    return data + 8 + header + begin;
}

static double number(const char *json, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    return at ? strtod(at + strlen(key), NULL) : NAN;
}

// --- the program's own model --------------------------------------------------------------------

typedef struct {
    int64_t rows, length, vocabulary;
    const int32_t *targets;
    const float *weights, *teacher;
    float *internal; /* [rows, length + 1, vocabulary]: row p scores token p */
    float *aligned;  /* [rows, length, vocabulary] */
    double gradient; /* size of what came back */
    uint64_t updates;
    bd_array input;
} own_model;

static bool rollout(void *self, bd_token_batch *out, bd_error *err)
{
    (void)err;
    own_model *m = self;
    m->input = (bd_array){.name = "tokens",
                          .dtype = BD_I32,
                          .rank = 2,
                          .shape = {m->rows, m->length},
                          .data = m->targets};
    *out = (bd_token_batch){.model_inputs = &m->input,
                            .input_count = 1,
                            .target_ids = m->input,
                            .loss_weights = {.name = "weights",
                                             .dtype = BD_F32,
                                             .rank = 2,
                                             .shape = {m->rows, m->length},
                                             .data = m->weights}};
    return true;
}

static bd_array scores(const own_model *m, const char *name, const float *data)
{
    return (bd_array){.name = name,
                      .dtype = BD_F32,
                      .rank = 3,
                      .shape = {m->rows, m->length, m->vocabulary},
                      .data = data};
}

static bool teacher(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err)
{
    (void)batch, (void)err;
    const own_model *m = self;
    *logits = scores(m, "teacher", m->teacher);
    return true;
}

/* Alignment is the program's affair: the row behind the last token is left out. */
static bool student(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err)
{
    (void)batch, (void)err;
    own_model *m = self;
    size_t row = (size_t)(m->length * m->vocabulary);
    for (int64_t r = 0; r < m->rows; r++)
        memcpy(m->aligned + (size_t)r * row,
               m->internal + (size_t)(r * (m->length + 1) * m->vocabulary), row * sizeof(float));
    *logits = scores(m, "student", m->aligned);
    return true;
}

static bool learn(void *self, const bd_token_batch *batch, const float *d_logits, bd_error *err)
{
    (void)batch, (void)err;
    own_model *m = self;
    for (int64_t i = 0; i < m->rows * m->length * m->vocabulary; i++)
        m->gradient += fabs((double)d_logits[i]);
    m->updates++;
    return true;
}

static void identity(void *self, void (*add)(void *to, const char *name, const char *value),
                     void *to)
{
    const own_model *m = self;
    char text[64];
    snprintf(text, sizeof text, "%lld", (long long)m->vocabulary);
    add(to, "own_model_vocabulary", text);
    add(to, "own_model_alignment", "shifted");
}

static own_model open_recording(const char *data, size_t size)
{
    own_model m = {0};
    int64_t shape[3], pair[3];
    const float *recorded = tensor(data, size, "student_logits", shape);
    m.rows = shape[0], m.length = shape[1], m.vocabulary = shape[2];
    m.teacher = tensor(data, size, "teacher_logits", shape);
    m.targets = tensor(data, size, "targets", pair);
    m.weights = tensor(data, size, "weights", pair);
    size_t row = (size_t)(m.length * m.vocabulary), longer = row + (size_t)m.vocabulary;
    m.internal = calloc((size_t)m.rows * longer, sizeof(float));
    m.aligned = calloc((size_t)m.rows * row, sizeof(float));
    for (int64_t r = 0; m.internal && r < m.rows; r++)
        memcpy(m.internal + (size_t)r * longer, recorded + (size_t)r * row, row * sizeof(float));
    return m;
}

// --- the case -----------------------------------------------------------------------------------

static bool check(const char *what, double got, double wanted)
{
    bool same = fabs(got - wanted) <= 1e-5 * fmax(1, fabs(wanted));
    printf("%-12s %.9g, wanted %.9g%s\n", what, got, wanted, same ? "" : "  DIFFERS");
    return same;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: own_model CASE.safetensors CASE.json\n");
        return 2;
    }
    size_t size, json_size;
    char *data = read_file(argv[1], &size), *json = read_file(argv[2], &json_size);
    own_model m = open_recording(data, size);
    const bd_distill_source source = {.self = &m,
                                      .prepare = rollout,
                                      .teacher = teacher,
                                      .student = student,
                                      .learn = learn,
                                      .identity = identity};
    bd_distill_options options = bd_distill_options_default();
    options.temperature = number(json, "temperature");
    options.soft = number(json, "soft");
    options.hard = number(json, "hard");
    if (strstr(json, "\"reverse\""))
        options.divergence = "reverse_kl";
    bd_error err = {0};
    bd_distill_sums sums;
    char fingerprint[65];
    if (!m.internal || !m.aligned || !bd_distill_once(&source, &options, &sums, &err) ||
        !bd_distill_fingerprint(&source, &options, fingerprint, &err)) {
        fprintf(stderr, "own_model: %s\n", err.message);
        return 1;
    }
    bool same = check("soft", sums.soft, number(json, "soft_sum"));
    same = check("hard", sums.hard, number(json, "hard_sum")) && same;
    same = check("total", sums.total, number(json, "total_sum")) && same;
    same = check("weight", sums.weight, number(json, "weight_sum")) && same;
    same =
        check("loss", sums.weight > 0 ? sums.total / sums.weight : 0, number(json, "loss")) && same;
    printf("gradient     %.9g\nidentity     %s\n", m.gradient, fingerprint);
    free(m.internal);
    free(m.aligned);
    free(data);
    free(json);
    return !same;
}
