/* template.h - the part of Jinja that chat templates are written in.
 *
 * Renders what Python's jinja2 renders with the settings that Hugging Face uses for chat templates:
 * trim_blocks, lstrip_blocks, break and continue, {% generation %} blocks, tojson without escaping
 * for HTML, and the functions raise_exception, strftime_now, namespace, range and dict. What is
 * outside this part is an error with line and column, when the template is compiled if it can be
 * known then.
 *
 *     bd_template *t = bd_template_compile(source, strlen(source), "chat_template", &err);
 *     bd_template_output out = {0};
 *     if (!bd_template_render(t, variables, NULL, &out, &err)) ...   // variables: a JSON object
 *     printf("%s", out.text.data);
 *     bd_template_output_free(&out), bd_template_free(t);
 *
 * Templates come with models, so they are not trusted: steps, memory and nesting are bounded, and
 * there is no way from a template to files or to anything but its variables.
 */
#ifndef BD_FORMAT_TEMPLATE_H
#define BD_FORMAT_TEMPLATE_H

#include <jansson.h>
#include <time.h>

#include "base/error.h"
#include "format/tokenizer_text.h"

typedef struct bd_template bd_template;

/* `what` stands for the template in errors: "what:line:column: ...". The source is copied. */
bd_template *bd_template_compile(const char *source, size_t size, const char *what, bd_error *err);
void bd_template_free(bd_template *t);

/* Bytes [begin, end) of the rendered text. For a watched list, `index` is the element. */
typedef struct {
    int64_t begin, end, index;
} bd_template_span;

typedef struct {
    bd_text text;
    bd_template_span *generation; /* what {% generation %} blocks printed, in order */
    int64_t generation_count, generation_room;
    bd_template_span *watched; /* what loops printed for elements of the watched list, in order */
    int64_t watched_count, watched_room;
} bd_template_output;
void bd_template_output_free(bd_template_output *out);

typedef struct {
    const char *watch; /* a variable that is a list of objects, "messages"; NULL: none */
    time_t now;        /* for strftime_now; 0: the clock */
} bd_template_options;

/* `variables` is a JSON object. NULL options: nothing watched. `out` must be empty; on failure it
 * holds what was printed so far. Any number of threads may render the same template. */
bool bd_template_render(const bd_template *t, json_t *variables, const bd_template_options *options,
                        bd_template_output *out, bd_error *err);

/* Does the template have {% generation %} blocks? */
bool bd_template_marks_generation(const bd_template *t);

#endif
