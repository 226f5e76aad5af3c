/* producer.h - a producer's end of a stream of hidden states: a target that answers requests.
 *
 * It holds nothing but the target. Each request names rows of tokens and the layout of the states;
 * one that was made for another target, or another rounding, ends the producer with an error that
 * names the field. Several trainers may be served, in turns. See stream.h for the other end.
 *
 *     bd_producer_options options = {.addresses = {"tcp://127.0.0.1:5600"}, .count = 1};
 *     bd_producer_report report;
 *     if (!bd_producer_run(target, &options, &report, &err)) ...
 */
#ifndef BD_TRAIN_PRODUCER_H
#define BD_TRAIN_PRODUCER_H

#include <signal.h>

#include "train/states.h"

enum { BD_MOST_TRAINERS = 16 };

typedef struct {
    const char *addresses[BD_MOST_TRAINERS]; /* of trainers (wire.h) */
    int count;
    double patience; /* seconds without any request that end it with an error; 0: wait for ever */
    const volatile sig_atomic_t *stop;          /* non-zero: end; NULL: never */
    void (*tell)(void *self, const char *line); /* who came, who left; NULL: nobody listens */
    void (*made)(void *self, int64_t records);  /* after each record; NULL: nobody listens */
    void *self;
} bd_producer_options;

typedef struct {
    int64_t records, tokens;
    double working, sending; /* seconds the target ran, and the trainers had no room */
} bd_producer_report;

/* Until every trainer said that it is done, or `stop`. */
bool bd_producer_run(bd_model *target, const bd_producer_options *options,
                     bd_producer_report *report, bd_error *err);

#endif
