/* html.h - a self-contained report page: text, tables, line and bar charts as inline SVG. */
#ifndef BD_CLI_HTML_H
#define BD_CLI_HTML_H

#include <stdint.h>

#include "base/file.h"

typedef struct {
    const char *name;
    const double *x, *y; /* [count] */
    int64_t count;
} bd_series;

void bd_html_begin(bd_writer *out, const char *title);
void bd_html_end(bd_writer *out);
void bd_html_text(bd_writer *out, const char *tag, const char *text); /* escaped */
void bd_html_escaped(bd_writer *out, const char *text);

/* Lines over a common axis; the y axis spans the data. */
void bd_html_lines(bd_writer *out, const char *title, const char *x_label, const char *y_label,
                   const bd_series *series, int count);
/* Bars of values in 0..1, labelled 1, 2, ... */
void bd_html_bars(bd_writer *out, const char *title, const char *x_label, const char *y_label,
                  const double *values, int64_t count);

#endif
