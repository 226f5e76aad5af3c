/* check - what moved since the stored figures.
 *
 *     check RESULTS.jsonl BASELINE.json          prints a Markdown table and what moved
 *     check RESULTS.jsonl --store BASELINE.json  makes these figures the stored ones
 *
 * A figure has moved when the two ranges between quartiles lie apart by more than a tenth of the stored
 * median. Machines differ: figures are ratios, which differ less, but store those of your own first.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static json_t *read_lines(const char *path)
{
    FILE *in = fopen(path, "r");
    json_t *all = json_array(), *one;
    while (in && (one = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL)))
        json_array_append_new(all, one);
    if (in)
        fclose(in);
    return all;
}

static double number(json_t *figure, const char *name)
{
    return json_number_value(json_object_get(figure, name));
}

static const char *name_of(json_t *figure)
{
    const char *name = json_string_value(json_object_get(figure, "name"));
    return name ? name : "";
}

static json_t *find(json_t *all, const char *name)
{
    size_t i;
    json_t *figure;
    json_array_foreach(all, i, figure) if (!strcmp(name_of(figure), name)) return figure;
    return NULL;
}

/* "", or how it moved. */
static const char *verdict(json_t *now, json_t *before)
{
    if (!before)
        return "new";
    const double margin = 0.1 * number(before, "median");
    if (number(now, "low") > number(before, "high") + margin)
        return "HIGHER";
    return number(now, "high") < number(before, "low") - margin ? "LOWER" : "";
}

static int compare(json_t *results, json_t *baseline)
{
    size_t i, moved = 0;
    json_t *now;
    printf("| figure | median | quartiles | stored | |\n| --- | ---: | ---: | ---: | --- |\n");
    json_array_foreach(results, i, now)
    {
        json_t *before = find(baseline, name_of(now));
        const char *said = verdict(now, before);
        printf("| %s | %.3f | %.3f to %.3f | ", name_of(now), number(now, "median"),
               number(now, "low"), number(now, "high"));
        printf(before ? "%.3f" : "-", number(before, "median"));
        printf(" | %s |\n", said);
        moved += *said != 0 && before != NULL;
    }
    json_array_foreach(baseline, i, now) if (!find(results, name_of(now)))
        printf("| %s | not measured | | %.3f | |\n", name_of(now), number(now, "median"));
    printf("\n%zu of %zu figures moved\n", moved, json_array_size(results));
    return 0;
}

int main(int argc, char **argv)
{
    bool store = argc == 4 && !strcmp(argv[2], "--store");
    if (argc != 3 && !store) {
        fprintf(stderr, "usage: check RESULTS.jsonl [--store] BASELINE.json\n");
        return 2;
    }
    json_t *results = read_lines(argv[1]);
    json_t *baseline = store ? NULL : json_load_file(argv[argc - 1], 0, NULL);
    int status = 0;
    if (json_array_size(results) == 0) {
        fprintf(stderr, "check: %s: no figures; make bench writes them\n", argv[1]);
        status = 1;
    } else if (store) {
        status = json_dump_file(results, argv[3], JSON_INDENT(1)) != 0;
        if (status)
            fprintf(stderr, "check: %s: cannot write\n", argv[3]);
    } else {
        status = compare(results, baseline);
    }
    json_decref(results);
    json_decref(baseline);
    return status;
}
