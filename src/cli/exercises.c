#include "cli/exercises.h"

#include <stdio.h>
#include <string.h>

/* The generator of Park and Miller. */
enum { FACTOR = 16807, MODULUS = 2147483647, NUMBERS = 30, WORDS = 6 };

static int64_t draw(bd_exercises *source, int64_t below)
{
    source->state = source->state * FACTOR % MODULUS;
    return (int64_t)((double)source->state / MODULUS * (double)below);
}

bd_exercises bd_exercises_begin(int64_t seed)
{
    bd_exercises source = {(seed * 7919 + 1) % (MODULUS - 1) + 1};
    for (int i = 0; i < 8; i++)
        draw(&source, 2);
    return source;
}

static void add_sum(bd_exercises *source, bd_exercise *e)
{
    int a = (int)draw(source, NUMBERS), b = (int)draw(source, NUMBERS);
    snprintf(e->prompt, sizeof e->prompt, "What is %d plus %d?", a, b);
    snprintf(e->answer, sizeof e->answer, " %d", a + b);
}

static void add_list(bd_exercises *source, bool reverse, bd_exercise *e)
{
    static const char *const words[WORDS] = {"red", "blue", "green", "gold", "grey", "pink"};
    const char *list[3];
    int64_t count = 2 + draw(source, 2);
    strcpy(e->prompt, reverse ? "Reverse:" : "Join:");
    for (int64_t i = 0; i < count; i++) {
        list[i] = words[draw(source, WORDS)];
        strcat(strcat(e->prompt, " "), list[i]);
    }
    strcpy(e->answer, reverse ? "" : " ");
    for (int64_t i = 0; i < count; i++) {
        if (reverse)
            strcat(e->answer, " ");
        else if (i > 0)
            strcat(e->answer, ", ");
        strcat(e->answer, list[reverse ? count - 1 - i : i]);
    }
}

bd_exercise bd_exercises_next(bd_exercises *source)
{
    bd_exercise e;
    int64_t kind = draw(source, 4);
    if (kind < 2)
        add_sum(source, &e);
    else
        add_list(source, kind == 2, &e);
    return e;
}

void bd_exercise_format(const bd_exercise *e, bool text, char line[BD_EXERCISE_LINE])
{
    snprintf(line, BD_EXERCISE_LINE,
             text ? "%s%s\n\n" : "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", e->prompt,
             e->answer);
}
