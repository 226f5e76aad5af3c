#include "cli/draft_compare_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

/* The seeds of one variant put together. */
typedef struct {
    const char *name;
    int64_t seeds, parameters;
    double training, held_out, accept, least, most, rate; // means, and the range of accept
    bd_generation_totals totals;
} variant_row;

static void add_totals(bd_generation_totals *sum, const bd_generation_totals *t)
{
    sum->prompts += t->prompts;
    sum->tokens += t->tokens;
    sum->seconds += t->seconds;
    sum->cycles += t->cycles;
    sum->produced += t->produced;
    for (int i = 0; i < BD_MOST_BLOCK; i++) {
        sum->tested[i] += t->tested[i];
        sum->accepted[i] += t->accepted[i];
    }
}

/* The variant whose seeds begin at `first`; returns where the next one begins. */
static int64_t gather(const bd_comparison *c, int64_t first, variant_row *row)
{
    int64_t i = first;
    *row = (variant_row){.name = c->items[first].variant,
                         .parameters = c->items[first].parameters,
                         .least = INFINITY};
    for (; i < c->count && !strcmp(c->items[i].variant, row->name); i++) {
        const bd_compared *item = &c->items[i];
        double accept = bd_generation_accept_length(&item->totals);
        row->seeds++;
        row->training += item->training_seconds;
        row->held_out += item->held_out;
        row->accept += accept;
        row->least = fmin(row->least, accept);
        row->most = fmax(row->most, accept);
        add_totals(&row->totals, &item->totals);
    }
    row->training /= (double)row->seeds;
    row->held_out /= (double)row->seeds;
    row->accept /= (double)row->seeds;
    row->rate = bd_generation_rate(&row->totals);
    return i;
}

static double over_plain(const bd_comparison *c, double rate)
{
    double plain = bd_generation_rate(&c->plain);
    return plain > 0 ? rate / plain : 0;
}

/* "-" for a loss that is not known: nothing held out, or a draft that was there already. */
enum { LOSS_TEXT = 32 };
static const char *loss_text(double loss, char out[LOSS_TEXT])
{
    if (!isfinite(loss))
        return "-";
    snprintf(out, LOSS_TEXT, "%.4f", loss);
    return out;
}

enum { PLACES_TEXT = 400 };
static void places(const bd_generation_totals *totals, char out[PLACES_TEXT])
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < BD_MOST_BLOCK && totals->tested[i] > 0 && used + 8 < PLACES_TEXT; i++)
        used += (size_t)snprintf(out + used, PLACES_TEXT - used, "%s%.2f", i ? " " : "",
                                 (double)totals->accepted[i] / (double)totals->tested[i]);
}

void bd_comparison_print(const bd_comparison *c)
{
    char text[PLACES_TEXT], loss[LOSS_TEXT];
    printf("%-10s %10s %9s %9s %10s %13s %9s %8s  %s\n", "variant", "parameters", "training",
           "held out", "acceptance", "range", "tokens/s", "speed-up", "accepted per position");
    printf("%-10s %10s %9s %9s %10.3f %13s %9.1f %8s\n", "(plain)", "", "", "", 1.0, "",
           bd_generation_rate(&c->plain), "1.00x");
    for (int64_t i = 0; i < c->count;) {
        variant_row row;
        i = gather(c, i, &row);
        char range[32] = "";
        if (row.seeds > 1)
            snprintf(range, sizeof range, "%.3f-%.3f", row.least, row.most);
        places(&row.totals, text);
        printf("%-10s %10lld %8.1fs %9s %10.3f %13s %9.1f %7.2fx  %s\n", row.name,
               (long long)row.parameters, row.training, loss_text(row.held_out, loss), row.accept,
               range, row.rate, over_plain(c, row.rate), text);
    }
    fflush(stdout);
}

// --- JSON ----------------------------------------------------------------------------------------

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *item_to_json(const bd_comparison *c, const bd_compared *item)
{
    double rate = bd_generation_rate(&item->totals);
    return json_pack("{s:s,s:I,s:I,s:I,s:f,s:o,s:o,s:f,s:f,s:f,s:o}", "variant", item->variant,
                     "seed", (json_int_t)item->seed, "parameters", (json_int_t)item->parameters,
                     "steps", (json_int_t)item->steps, "training_seconds", item->training_seconds,
                     "loss", number(item->loss), "held_out_loss", number(item->held_out),
                     "acceptance_length", bd_generation_accept_length(&item->totals),
                     "tokens_per_second", rate, "speed_up", over_plain(c, rate),
                     "acceptance_per_position", bd_generation_positions(&item->totals));
}

json_t *bd_comparison_to_json(const bd_comparison *c)
{
    json_t *list = json_array(), *variants = json_object();
    for (int64_t i = 0; i < c->count; i++)
        json_array_append_new(list, item_to_json(c, &c->items[i]));
    for (int64_t i = 0; i < c->count;) {
        variant_row row;
        i = gather(c, i, &row);
        json_object_set_new(variants, row.name,
                            json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:o}", "seeds",
                                      (json_int_t)row.seeds, "training_seconds", row.training,
                                      "acceptance_length", row.accept, "acceptance_least",
                                      row.least, "acceptance_most", row.most, "tokens_per_second",
                                      row.rate, "acceptance_per_position",
                                      bd_generation_positions(&row.totals)));
    }
    return json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:f,s:o,s:o}", "target", c->target, "data", c->data,
                     "dtype", c->dtype, "prompts", (json_int_t)c->prompts, "failed",
                     (json_int_t)c->failed, "tokens_per_prompt", (json_int_t)c->tokens,
                     "plain_tokens_per_second", bd_generation_rate(&c->plain), "variants", variants,
                     "drafts", list);
}

// --- Markdown ------------------------------------------------------------------------------------

bool bd_comparison_markdown(const bd_comparison *c, const char *path, bd_error *err)
{
    char text[PLACES_TEXT], loss[LOSS_TEXT];
    bd_writer *out = bd_writer_open(path, err);
    if (!out)
        return false;
    bd_writer_print(out,
                    "# Drafters compared\n\nTarget `%s`, trained on `%s`, decoded in %s: %lld "
                    "prompts, up to %lld tokens each, greedy. Plain decoding: %.1f tokens/s.\n\n",
                    c->target, c->data, c->dtype, (long long)c->prompts, (long long)c->tokens,
                    bd_generation_rate(&c->plain));
    bd_writer_print(out,
                    "| variant | parameters | seeds | training, s | held-out loss | acceptance "
                    "length | range | tokens/s | speed-up | accepted per position |\n"
                    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
    for (int64_t i = 0; i < c->count;) {
        variant_row row;
        i = gather(c, i, &row);
        places(&row.totals, text);
        bd_writer_print(out,
                        "| %s | %lld | %lld | %.1f | %s | %.3f | %.3f to %.3f | %.1f | %.2fx | "
                        "%s |\n",
                        row.name, (long long)row.parameters, (long long)row.seeds, row.training,
                        loss_text(row.held_out, loss), row.accept, row.least, row.most, row.rate,
                        over_plain(c, row.rate), text);
    }
    bd_writer_print(out, "\nEvery draft:\n\n| variant | seed | loss | acceptance length | tokens/s "
                         "| accepted per position |\n| --- | ---: | ---: | ---: | ---: | --- |\n");
    for (int64_t i = 0; i < c->count; i++) {
        const bd_compared *item = &c->items[i];
        places(&item->totals, text);
        bd_writer_print(out, "| %s | %lld | %s | %.3f | %.1f | %s |\n", item->variant,
                        (long long)item->seed, loss_text(item->loss, loss),
                        bd_generation_accept_length(&item->totals),
                        bd_generation_rate(&item->totals), text);
    }
    bd_writer_print(out,
                    "\nLosses of different variants are not the same quantity. The acceptance "
                    "length is tokens per pass of the target; a position's number is the share "
                    "accepted of those whose predecessors were.\n");
    return bd_writer_commit(out, err);
}
