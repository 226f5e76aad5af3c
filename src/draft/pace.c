#include "draft/pace.h"

// A trial is short, because a text may be short and each lost cycle counts; rests double, so that
// on a text where drafts never help the trials vanish.
enum { FIRST_PLAIN = 2, TRIAL = 4, SHORTEST_REST = 32, LONGEST_REST = 1024 };

bd_pace bd_pace_begin(void)
{
    return (bd_pace){.rest = FIRST_PLAIN, .next_rest = SHORTEST_REST};
}

bool bd_pace_draft(const bd_pace *pace)
{
    return pace->rest == 0;
}

void bd_pace_note(bd_pace *pace, bool drafted, double seconds, int64_t tokens)
{
    if (!drafted) {
        pace->single = pace->single > 0 ? 0.8 * pace->single + 0.2 * seconds : seconds;
        pace->rest -= pace->rest > 0;
        return;
    }
    pace->seconds += seconds;
    pace->tokens += tokens;
    if (++pace->cycles < TRIAL)
        return;
    if (pace->seconds > pace->single * (double)pace->tokens) {
        pace->rest = pace->next_rest;
        if (pace->next_rest < LONGEST_REST)
            pace->next_rest *= 2;
    } else {
        pace->next_rest = SHORTEST_REST;
    }
    pace->seconds = 0;
    pace->tokens = pace->cycles = 0;
}
