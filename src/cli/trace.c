#include "cli/trace.h"

#include <stdlib.h>
#include <string.h>

#include "cli/html.h"

// --- recording ----------------------------------------------------------------------------------

static bool make_room(void **items, int64_t count, int64_t *room, size_t size)
{
    if (count < *room)
        return true;
    int64_t wanted = *room ? 2 * *room : 256;
    void *larger = realloc(*items, (size_t)wanted * size);
    if (!larger)
        return false;
    *items = larger;
    *room = wanted;
    return true;
}

static void add_slot(bd_trace *trace, bd_trace_step *step, bd_trace_slot slot)
{
    void *slots = trace->slots;
    if (!make_room(&slots, trace->slot_count, &trace->slot_room, sizeof slot)) {
        trace->failed = true;
        return;
    }
    trace->slots = slots;
    trace->slots[trace->slot_count++] = slot;
    step->count++;
}

void bd_trace_add(bd_trace *trace, const bd_transition *transition)
{
    void *steps = trace->steps;
    if (trace->failed ||
        !make_room(&steps, trace->step_count, &trace->step_room, sizeof *trace->steps)) {
        trace->failed = true;
        return;
    }
    trace->steps = steps;
    const bd_trace_step *last = trace->step_count ? &trace->steps[trace->step_count - 1] : NULL;
    bool same = last && last->block == transition->block;
    bd_trace_step step = {.block = transition->block,
                          .step = same ? last->step + 1 : 0,
                          .seed = transition->seed,
                          .first = trace->slot_count};
    int64_t begin = transition->block * trace->block_size, end = begin + trace->block_size;
    for (int64_t p = begin; p < end && p < trace->length; p++)
        if (transition->open[p])
            add_slot(trace, &step,
                     (bd_trace_slot){(int32_t)p, transition->token[p], transition->confidence[p],
                                     transition->picks[p] != 0});
    trace->steps[trace->step_count++] = step;
}

void bd_trace_clear(bd_trace *trace)
{
    trace->step_count = trace->slot_count = 0;
    trace->failed = false;
}

void bd_trace_free(bd_trace *trace)
{
    free(trace->steps);
    free(trace->slots);
    *trace = (bd_trace){0};
}

// --- the terminal -------------------------------------------------------------------------------

/* Colours of the 256-colour palette, from blue for a block's first steps to red for its last. */
static int colour_of(const bd_trace *trace, int64_t step)
{
    static const int ramp[] = {33, 39, 44, 42, 76, 148, 184, 214, 208, 202, 196};
    enum { COLOURS = sizeof ramp / sizeof *ramp };
    int64_t last = trace->block_size > 1 ? trace->block_size - 1 : 1;
    int64_t at = step * (COLOURS - 1) / last;
    return ramp[at < COLOURS ? at : COLOURS - 1];
}

/* A token on one line: line ends as an arrow, other control characters as a dot. */
static void print_token(const bd_tokenizer *tokenizer, int32_t token, FILE *out)
{
    size_t size = 0;
    const char *bytes = tokenizer ? bd_tokenizer_token(tokenizer, token, &size) : NULL;
    bd_text text = {0};
    if (!bytes)
        bd_text_print(&text, "%d ", token);
    else
        bd_utf8_repair(&text, bytes, size, false);
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c == '\n')
            fputs("↵", out);
        else if (c < ' ' || c == 127)
            fputs("·", out);
        else
            fputc(c, out);
    }
    bd_text_free(&text);
}

/* Where the block of step `at` begins in the list of steps. */
static int64_t block_begin(const bd_trace *trace, int64_t at)
{
    while (at > 0 && trace->steps[at - 1].block == trace->steps[at].block)
        at--;
    return at;
}

/* The step, up to `last`, that filled a position; -1: none did. */
static int64_t filled_by(const bd_trace *trace, int64_t first, int64_t last, int32_t position,
                         int32_t *token)
{
    for (int64_t s = first; s <= last; s++)
        for (int64_t i = 0; i < trace->steps[s].count; i++) {
            const bd_trace_slot *slot = &trace->slots[trace->steps[s].first + i];
            if (slot->picked && slot->position == position) {
                *token = slot->token;
                return s;
            }
        }
    return -1;
}

static void print_block(const bd_trace *trace, int64_t first, int64_t last,
                        const bd_tokenizer *tokenizer, bool colour, FILE *out)
{
    // A block's first step lists every slot that was open in it.
    const bd_trace_step *opening = &trace->steps[first];
    for (int64_t i = 0; i < opening->count; i++) {
        int32_t token = 0;
        int64_t by =
            filled_by(trace, first, last, trace->slots[opening->first + i].position, &token);
        if (by < 0) {
            fputs(colour ? "\033[90m░\033[0m" : "░", out);
            continue;
        }
        if (colour)
            fprintf(out, "\033[%s38;5;%dm", by == last ? "1;4;" : "",
                    colour_of(trace, trace->steps[by].step));
        print_token(tokenizer, token, out);
        if (colour)
            fputs("\033[0m", out);
    }
}

void bd_trace_print_step(const bd_trace *trace, const bd_tokenizer *tokenizer, bool colour,
                         FILE *out)
{
    if (trace->step_count == 0)
        return;
    int64_t last = trace->step_count - 1, kept = 0;
    const bd_trace_step *step = &trace->steps[last];
    for (int64_t i = 0; i < step->count; i++)
        kept += trace->slots[step->first + i].picked;
    fprintf(out, "block %3lld step %2lld +%-2lld ", (long long)step->block, (long long)step->step,
            (long long)kept);
    print_block(trace, block_begin(trace, last), last, tokenizer, colour, out);
    fputc('\n', out);
}

void bd_trace_print_text(const bd_trace *trace, const bd_tokenizer *tokenizer, FILE *out)
{
    fputs("steps of a block: ", out);
    for (int64_t s = 0; s < trace->block_size && s < 32; s++)
        fprintf(out, "\033[38;5;%dm%lld\033[0m ", colour_of(trace, s), (long long)s);
    fputc('\n', out);
    for (int64_t first = 0, next; first < trace->step_count; first = next) {
        for (next = first + 1;
             next < trace->step_count && trace->steps[next].block == trace->steps[first].block;)
            next++;
        const bd_trace_step *opening = &trace->steps[first];
        for (int64_t i = 0; i < opening->count; i++) {
            int32_t token = 0;
            int64_t by = filled_by(trace, first, next - 1,
                                   trace->slots[opening->first + i].position, &token);
            if (by < 0)
                continue;
            fprintf(out, "\033[38;5;%dm", colour_of(trace, trace->steps[by].step));
            print_token(tokenizer, token, out);
            fputs("\033[0m", out);
        }
    }
    fputc('\n', out);
}

// --- JSON and the page --------------------------------------------------------------------------

static json_t *token_json(const bd_tokenizer *tokenizer, int32_t token)
{
    size_t size = 0;
    const char *bytes = tokenizer ? bd_tokenizer_token(tokenizer, token, &size) : NULL;
    bd_text text = {0};
    if (bytes)
        bd_utf8_repair(&text, bytes, size, false);
    else
        bd_text_print(&text, "%d ", token);
    json_t *value = json_stringn(text.data ? text.data : "", text.size);
    bd_text_free(&text);
    return value;
}

json_t *bd_trace_json(const bd_trace *trace, const bd_tokenizer *tokenizer, const char *prompt)
{
    json_t *steps = json_array();
    for (int64_t s = 0; s < trace->step_count; s++) {
        const bd_trace_step *step = &trace->steps[s];
        json_t *slots = json_array();
        for (int64_t i = 0; i < step->count; i++) {
            const bd_trace_slot *slot = &trace->slots[step->first + i];
            // A non-finite confidence has no JSON; it counts as none.
            double confidence =
                slot->confidence >= 0 && slot->confidence <= 1 ? slot->confidence : 0;
            json_array_append_new(
                slots, json_pack("[i,o,f,b]", slot->position, token_json(tokenizer, slot->token),
                                 (double)(long)(confidence * 1e4 + .5) / 1e4, slot->picked));
        }
        json_array_append_new(
            steps, json_pack("{s:I,s:I,s:b,s:o}", "block", (json_int_t)step->block, "step",
                             (json_int_t)step->step, "seed", step->seed, "slots", slots));
    }
    return json_pack("{s:s,s:I,s:o}", "prompt", prompt, "block_size", (json_int_t)trace->block_size,
                     "steps", steps);
}

static const char style[] =
    "<style>.trace pre{line-height:1.9}.trace pre b{font-weight:600}.trace pre "
    "span{border-radius:3px;"
    "padding:.1em 0}.trace .m{color:#9ca3af}.trace .n{outline:1px solid currentColor}"
    ".trace input{width:60%;vertical-align:middle}.trace output{margin-left:.8rem;"
    "font-variant-numeric:tabular-nums}</style>";

/* Runs inside its section: s is the section, d the trace. `at[p]` is the number of the step that
 * kept position p; the slider says how many steps have been done. */
static const char script[] =
    "var r=s.querySelector('input'),o=s.querySelector('output'),e=s.querySelector('pre'),"
    "g=s.querySelector('button'),n=d.steps.length,at={},tok={},conf={},order=[],timer=0;"
    "d.steps.forEach(function(t,k){t.slots.forEach(function(x){"
    "if(!(x[0] in tok)){order.push(x[0]);tok[x[0]]='';at[x[0]]=1/0}"
    "if(x[3]){at[x[0]]=k;tok[x[0]]=x[1];conf[x[0]]=x[2]}})});"
    "order.sort(function(a,b){return a-b});"
    "function hue(t){return 225-225*Math.min(1,t.step/Math.max(1,d.block_size-1))}"
    "function show(){var k=+r.value,next={},b=document.createElement('b');e.textContent='';"
    "b.textContent=d.prompt;e.appendChild(b);"
    "if(k<n)d.steps[k].slots.forEach(function(x){next[x[0]]=x});"
    "order.forEach(function(p){var x=document.createElement('span'),t;"
    "if(at[p]<k){t=d.steps[at[p]];x.textContent=tok[p];"
    "x.style.background='hsla('+hue(t)+',80%,55%,.35)';if(at[p]===k-1)x.className='n';"
    "x.title='step '+t.step+' of block '+t.block+(t.seed?' (first token)':'')+', confidence "
    "'+conf[p]}"
    "else{x.textContent='\\u2591';x.className='m';if(next[p]){"
    "x.style.background='hsla(45,90%,50%,'+(next[p][2]*.5)+')';"
    "x.title='proposes '+JSON.stringify(next[p][1])+', confidence '+next[p][2]}}"
    "e.appendChild(x)});"
    "o.textContent='step '+k+' of '+n}"
    "r.max=n;r.value=n;r.oninput=show;"
    "g.onclick=function(){if(timer){clearInterval(timer);timer=0;return}if(+r.value>=n)r.value=0;"
    "timer=setInterval(function(){r.value=+r.value+1;show();"
    "if(+r.value>=n){clearInterval(timer);timer=0}},120)};show()";

static void write_final_text(bd_writer *out, json_t *trace)
{
    size_t s, i;
    json_t *step, *slot;
    const char *prompt = json_string_value(json_object_get(trace, "prompt"));
    bd_writer_print(out, "<pre><b>");
    bd_html_escaped(out, prompt ? prompt : "");
    bd_writer_print(out, "</b>");
    json_t *steps = json_object_get(trace, "steps");
    json_array_foreach(steps, s, step)
    {
        // The first step of a block lists its slots in order; what they became is told by later
        // ones.
        json_t *opening = json_object_get(step, "slots");
        if (json_integer_value(json_object_get(step, "step")) != 0)
            continue;
        json_array_foreach(opening, i, slot)
        {
            json_int_t position = json_integer_value(json_array_get(slot, 0));
            const char *text = NULL;
            for (size_t later = s; later < json_array_size(steps) && !text; later++) {
                json_t *other = json_array_get(steps, later), *candidate;
                size_t k;
                if (later > s && json_integer_value(json_object_get(other, "step")) == 0)
                    break;
                json_array_foreach(
                    json_object_get(other, "slots"), k,
                    candidate) if (json_integer_value(json_array_get(candidate, 0)) == position &&
                                   json_is_true(json_array_get(candidate, 3))) text =
                    json_string_value(json_array_get(candidate, 1));
            }
            bd_html_escaped(out, text ? text : "");
        }
    }
    bd_writer_print(out, "</pre>\n");
}

/* JSON inside a script element must not contain what ends it. */
static void write_data(bd_writer *out, json_t *trace)
{
    char *text = json_dumps(trace, JSON_COMPACT | JSON_REAL_PRECISION(6));
    for (const char *c = text; c && *c; c++) {
        if (*c == '<')
            bd_writer_print(out, "\\u003c");
        else
            bd_writer_write(out, c, 1);
    }
    free(text);
}

void bd_html_trace(bd_writer *out, json_t *trace)
{
    bd_writer_print(out,
                    "<section class=\"trace\"><h2>Denoising, step by step</h2>\n%s\n"
                    "<p><button type=\"button\">play / stop</button> <input type=\"range\" "
                    "min=\"0\" aria-label=\"step\"><output></output></p>\n",
                    style);
    write_final_text(out, trace);
    bd_writer_print(out,
                    "<p>Blue tokens were kept in the first steps of their block, red ones in its "
                    "last; shades are masks, the yellower the surer the model is of what it "
                    "proposes there.</p>\n<script>(function(s,d){%s})(document.currentScript."
                    "parentNode,",
                    script);
    write_data(out, trace);
    bd_writer_print(out, ")</script></section>\n");
}
