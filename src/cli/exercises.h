/* exercises.h - short exercises whose answers have one right form, so that exact match measures them.
 *
 * Half are sums of two numbers below 30, half turn a list of two or three words around or join it
 * with commas. The same seed gives the same exercises anywhere.
 *
 *     bd_exercises source = bd_exercises_begin(1);
 *     bd_exercise e = bd_exercises_next(&source);        // "What is 3 plus 4?", " 7"
 */
#ifndef BD_CLI_EXERCISES_H
#define BD_CLI_EXERCISES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t state;
} bd_exercises;

typedef struct {
    char prompt[64], answer[64];
} bd_exercise;

bd_exercises bd_exercises_begin(int64_t seed);
bd_exercise bd_exercises_next(bd_exercises *source);

/* A line {"prompt": ..., "completion": ...}; text: prompt and answer as text to pretrain on, with an
 * empty line behind. */
enum { BD_EXERCISE_LINE = 192 };
void bd_exercise_format(const bd_exercise *e, bool text, char line[BD_EXERCISE_LINE]);

#endif
