/* probe_compare.h - computed against expected, by the tolerances of the golden READMEs. */
#ifndef BD_CLI_PROBE_COMPARE_H
#define BD_CLI_PROBE_COMPARE_H

#include "cli/probe.h"

typedef struct {
    int64_t compared, failures;
    double worst; /* largest difference over largest wanted magnitude of a tensor */
    char first_failure[1100];
} bd_probe_result;

void bd_probe_compare(const bd_probe *probe, bd_probe_result *result);

enum { BD_PROBE_FAMILIES = 32 };
typedef struct {
    struct {
        char name[48], skipped_why[160];
        int64_t cases, skipped, failed_cases;
        double worst;
    } family[BD_PROBE_FAMILIES];
    int64_t count;
} bd_probe_totals;

/* Failures are printed on stderr as they come. */
void bd_probe_totals_add(bd_probe_totals *totals, const char *family, const char *path,
                         const bd_probe_result *result, const char *skipped);
bool bd_probe_totals_print(const bd_probe_totals *totals); /* false: something failed */

#endif
