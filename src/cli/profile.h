/* profile.h - --profile and --profile-trace: where a command's time went, told at its end.
 *
 *     count += bd_profile_options(&profile, list + count);
 *     bd_profile_chosen_start(&profile, &err);       // before the work that is looked at
 *     ... work ...
 *     bd_profile_chosen_report(&profile, &err);      // a table on stderr, the trace into its file
 */
#ifndef BD_CLI_PROFILE_H
#define BD_CLI_PROFILE_H

#include "base/profile.h"
#include "cli/options.h"

typedef struct {
    bool table;        /* --profile */
    const char *trace; /* --profile-trace, which wants the table as well; or NULL */
} bd_profile_choice;

/* The two options; room for them at `list`. Returns how many. */
enum { BD_PROFILE_OPTIONS = 2 };
int bd_profile_options(bd_profile_choice *choice, bd_option *list);

/* Begin, if either was asked for; a trace that could not be written is refused now. */
bool bd_profile_chosen_start(const bd_profile_choice *choice, bd_error *err);

/* Stop, measure the ceilings, print the table on stderr, write the trace. */
bool bd_profile_chosen_report(const bd_profile_choice *choice, bd_error *err);

#endif
