#include "draft/pace.h"

#include <assert.h>
#include <math.h>

// Drafting may lose this share of what the text takes plainly. Together with the noise of the
// measurements that stays below three in a hundred.
static const double ALLOWED_LOSS = 0.025;
// Drafting that gains less than this is not distinguished from drafting that does not pay.
static const double GAIN = 1.02;
// How fast older cycles fade, and how much of what is known stays when drafting is tried again.
static const double FADE = 0.95, AFTER_REST = 0.3;
// What is believed of a place nobody has tested is worth one test.
static const double FIRST_GUESS = 0.7, GUESS_WEIGHT = 1;

// The first trial proposes few tokens, because what a pass over a block costs is not known yet.
// Rests double, so that on a text where drafts never help the trials vanish. A long run of drafting
// is interrupted by one plain pass now and then, and one over a whole block, or what these cost
// would be long out of date.
enum {
    FIRST_PASSES = 2,
    FEW = 4,
    FIRST_TRIAL = 3,
    SHORTEST_REST = 16,
    LONGEST_REST = 256,
    LONGEST_RUN = 64,
    WHOLE_BLOCK_EVERY = 24
};

bd_pace bd_pace_new(int64_t block)
{
    return (bd_pace){.block = block, .next_rest = SHORTEST_REST};
}

void bd_pace_begin(bd_pace *pace, int64_t most)
{
    pace->most = most;
    pace->made = 0;
    pace->lost = 0;
    // Another text may be easier to guess: trials come sooner than they would in the old one.
    pace->rest /= 2;
    if (pace->next_rest > SHORTEST_REST)
        pace->next_rest /= 2;
}

// --- costs ---------------------------------------------------------------------------------------

/* The first measurements can be far too long (memory is touched for the first time), later ones
 * when the machine is busy elsewhere: of the first few the shortest counts, of the others none for
 * more than half again what was known. */
static void measure(bd_duration *d, double seconds)
{
    if (d->count == 0 || (d->count < FEW && seconds < d->seconds))
        d->seconds = seconds;
    else if (d->count >= FEW)
        d->seconds += 0.1 * (fmin(seconds, 1.5 * d->seconds) - d->seconds);
    d->count++;
}

/* What index `at` of a table costs. A larger index never costs less, so a measurement counts for
 * all below it; between two of them it is a straight line, which also goes on behind the last. */
static double cost(const bd_duration *table, int64_t size, int64_t at)
{
    int64_t below = -1, above = -1, first = -1;
    for (int64_t i = 0; i < size; i++) {
        if (table[i].count == 0)
            continue;
        if (first < 0)
            first = i;
        if (i <= at)
            below = i;
        else if (above < 0 || table[i].seconds < table[above].seconds)
            above = i;
    }
    if (first < 0)
        return 0;
    if (below < 0)
        return table[above].seconds;
    if (above < 0 && below > first && below < at) { // behind the last
        double slope = (table[below].seconds - table[first].seconds) / (double)(below - first);
        return table[below].seconds + fmax(slope, 0) * (double)(at - below);
    }
    if (above < 0)
        return table[below].seconds;
    double low = fmin(table[below].seconds, table[above].seconds);
    return low + (table[above].seconds - low) * (double)(at - below) / (double)(above - below);
}

double bd_pace_pass_seconds(const bd_pace *pace, int64_t rows)
{
    assert(rows >= 1 && rows <= pace->block + 1);
    return cost(pace->pass, pace->block + 2, rows);
}

double bd_pace_draft_seconds(const bd_pace *pace, int64_t tokens)
{
    assert(tokens >= 0 && tokens <= pace->block);
    return cost(pace->draft, pace->block + 1, tokens);
}

// --- gains ---------------------------------------------------------------------------------------

double bd_pace_expected(const bd_pace *pace, int64_t verified)
{
    // Places behind those tested are taken to be as good as the last that was.
    double all = 1, place = FIRST_GUESS, sum = 1;
    for (int64_t i = 0; i < verified; i++) {
        place = (pace->accepted[i] + GUESS_WEIGHT * place) / (pace->tested[i] + GUESS_WEIGHT);
        all *= place;
        sum += all;
    }
    return sum;
}

static double cycle_seconds(const bd_pace *pace, int64_t length)
{
    return bd_pace_draft_seconds(pace, length) + bd_pace_pass_seconds(pace, length + 1);
}

int64_t bd_pace_best_length(const bd_pace *pace, int64_t limit, double *rate)
{
    int64_t best = 1;
    *rate = 0;
    for (int64_t n = 1; n <= limit; n++) {
        double seconds = cycle_seconds(pace, n);
        double here = seconds > 0 ? bd_pace_expected(pace, n) / seconds : 0;
        if (here > *rate) {
            *rate = here;
            best = n;
        }
    }
    return best;
}

static bool drafts_were_measured(const bd_pace *pace)
{
    return pace->seconds > 0;
}

static double drafted_rate(const bd_pace *pace)
{
    return pace->seconds > 0 ? pace->tokens / pace->seconds : 0;
}

double bd_pace_allowance(const bd_pace *pace)
{
    int64_t tokens = pace->made > pace->most ? pace->made : pace->most;
    // Drafts often fail where a text begins and do well later on: while they lose, a part of what
    // may be lost is kept for then.
    double share = (double)tokens;
    if (pace->lost > 0)
        share = ((double)tokens + 2 * (double)pace->made) / 3;
    return ALLOWED_LOSS * share * bd_pace_pass_seconds(pace, 1);
}

// --- decisions -----------------------------------------------------------------------------------

/* May a cycle of this length fail altogether? */
static bool affordable(const bd_pace *pace, int64_t length)
{
    double single = bd_pace_pass_seconds(pace, 1);
    double worst = cycle_seconds(pace, length) - single;
    if (!drafts_were_measured(pace))
        worst = 1.5 * single;
    return pace->lost + worst <= bd_pace_allowance(pace);
}

static int64_t plan_auto(const bd_pace *pace, int64_t limit, bool confident)
{
    if (pace->rest > 0 || pace->run >= LONGEST_RUN || pace->made == 0)
        return 0;
    int64_t length = limit;
    if (!drafts_were_measured(pace)) {
        length = limit < FIRST_TRIAL ? limit : FIRST_TRIAL;
    } else if (!confident && pace->run % WHOLE_BLOCK_EVERY != WHOLE_BLOCK_EVERY - 1) {
        double rate;
        length = bd_pace_best_length(pace, limit, &rate);
    }
    while (length > 0 && !affordable(pace, length))
        length--;
    return length;
}

int64_t bd_pace_plan(const bd_pace *pace, bd_draft_schedule schedule, int64_t limit, bool confident)
{
    if (limit <= 0 || schedule == BD_DRAFT_FIXED)
        return limit;
    if (pace->pass[1].count < FIRST_PASSES) // nothing to compare with
        return 0;
    return schedule == BD_DRAFT_AUTO ? plan_auto(pace, limit, confident) : limit;
}

/* The least that a further row costs from here on: rows may be cheap in groups. */
static double cheapest_row(const bd_pace *pace, int64_t verified, int64_t count)
{
    double now = bd_pace_pass_seconds(pace, verified + 1), least = INFINITY;
    for (int64_t n = verified + 1; n <= count; n++)
        least = fmin(least, (bd_pace_pass_seconds(pace, n + 1) - now) / (double)(n - verified));
    return least;
}

/* What the head says, corrected by how it has done so far: it may be too sure, or never trained. */
static double chance(const bd_pace *pace, float logit)
{
    double trust = (pace->came + 2) / (pace->foreseen + 2);
    return fmin(trust / (1 + exp(-(double)logit)), 1);
}

int64_t bd_pace_cut(const bd_pace *pace, const float *confidence, int64_t count)
{
    // One cold measurement must not keep a length from ever being measured again.
    if (pace->pass[count + 1].count < FEW)
        return count;
    // A row is worth it when it brings tokens faster than drafting as a whole does.
    double rate = drafted_rate(pace), all = 1;
    for (int64_t n = 0; n < count; n++) {
        all *= chance(pace, confidence[n]);
        if (all < rate * cheapest_row(pace, n, count))
            return n;
    }
    return count;
}

// --- learning ------------------------------------------------------------------------------------

static void fade(bd_pace *pace, double factor)
{
    for (int64_t i = 0; i < BD_MOST_BLOCK && pace->tested[i] > 0; i++) {
        pace->tested[i] *= factor;
        pace->accepted[i] *= factor;
    }
    pace->foreseen *= factor;
    pace->came *= factor;
    pace->tokens *= factor;
    pace->seconds *= factor;
}

static void learn_places(bd_pace *pace, const bd_pace_cycle *c)
{
    for (int64_t i = 0; i < c->verified && i <= c->accepted; i++) {
        pace->tested[i]++;
        pace->accepted[i] += i < c->accepted;
        if (c->confidence) {
            pace->foreseen += 1 / (1 + exp(-(double)c->confidence[i]));
            pace->came += i < c->accepted;
        }
    }
}

static bool pays(const bd_pace *pace, const bd_pace_cycle *c)
{
    double rate = drafted_rate(pace);
    if (!c->confidence) // another length may do better than those tried
        bd_pace_best_length(pace, pace->block, &rate);
    return rate * bd_pace_pass_seconds(pace, 1) > GAIN;
}

static void note_drafted(bd_pace *pace, const bd_pace_cycle *c)
{
    double seconds = c->draft_seconds + c->pass_seconds;
    fade(pace, FADE);
    measure(&pace->draft[c->proposed], c->draft_seconds);
    learn_places(pace, c);
    pace->tokens += (double)c->made;
    pace->seconds += seconds;
    // A machine that was busy elsewhere for a moment is not the draft's fault.
    double usual = 2 * cycle_seconds(pace, c->proposed);
    pace->lost += fmin(seconds, usual) - (double)c->made * bd_pace_pass_seconds(pace, 1);
    pace->run++;
    if (pays(pace, c)) {
        if (pace->run >= SHORTEST_REST)
            pace->next_rest = SHORTEST_REST;
        return;
    }
    pace->rest = pace->next_rest;
    if (pace->next_rest < LONGEST_REST)
        pace->next_rest *= 2;
}

void bd_pace_note(bd_pace *pace, const bd_pace_cycle *c)
{
    assert(c->verified <= c->proposed && c->accepted <= c->verified);
    pace->made += c->made;
    if (pace->held)
        return;
    measure(&pace->pass[c->verified + 1], c->pass_seconds);
    if (c->proposed > 0) {
        note_drafted(pace, c);
        return;
    }
    pace->run = 0;
    if (pace->rest > 0 && --pace->rest == 0)
        fade(pace, AFTER_REST);
}
