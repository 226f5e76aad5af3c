#include "cli/html.h"

#include <math.h>
#include <stdio.h>

static const char *const colours[] = {"#2563eb", "#dc2626", "#059669",
                                      "#d97706", "#7c3aed", "#0891b2"};
enum { COLOURS = sizeof colours / sizeof *colours };

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:#1f2937;"
    "background:#fff}h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}table{border-collapse:"
    "collapse}"
    "td,th{padding:.25rem .8rem;border-bottom:1px solid "
    "#e5e7eb;text-align:left}td.n{text-align:right;"
    "font-variant-numeric:tabular-nums}pre{background:#f3f4f6;padding:.8rem;white-space:pre-wrap;"
    "overflow-wrap:anywhere}svg{max-width:100%;height:auto}svg text{font-size:12px;fill:#4b5563}"
    "@media(prefers-color-scheme:dark){body{background:#111827;color:#e5e7eb}pre{background:#"
    "1f2937}"
    "td,th{border-color:#374151}svg text{fill:#9ca3af}}";

void bd_html_escaped(bd_writer *out, const char *text)
{
    for (; *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if (entity)
            bd_writer_print(out, "%s", entity);
        else
            bd_writer_write(out, text, 1);
    }
}

void bd_html_text(bd_writer *out, const char *tag, const char *text)
{
    bd_writer_print(out, "<%s>", tag);
    bd_html_escaped(out, text);
    bd_writer_print(out, "</%s>\n", tag);
}

void bd_html_begin(bd_writer *out, const char *title)
{
    bd_writer_print(out,
                    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name="
                    "\"viewport\" content=\"width=device-width\">\n<title>");
    bd_html_escaped(out, title);
    bd_writer_print(out, "</title>\n<style>%s</style></head><body>\n", style);
    bd_html_text(out, "h1", title);
}

void bd_html_end(bd_writer *out)
{
    bd_writer_print(out, "</body></html>\n");
}

enum { WIDTH = 720, HEIGHT = 280, LEFT = 60, RIGHT = 20, TOP = 20, BOTTOM = 45 };

typedef struct {
    double x0, x1, y0, y1;
} extent;

static double place_x(const extent *e, double x)
{
    return LEFT + (x - e->x0) / (e->x1 - e->x0) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const extent *e, double y)
{
    return HEIGHT - BOTTOM - (y - e->y0) / (e->y1 - e->y0) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that about five fit into the span. */
static double tick_step(double span)
{
    double step = pow(10, floor(log10(span / 5)));
    return span / step > 25 ? 5 * step : span / step > 10 ? 2 * step : step;
}

static void axes(bd_writer *out, const extent *e, const char *x_label, const char *y_label,
                 bool x_ticks)
{
    double step = tick_step(e->y1 - e->y0);
    for (double y = ceil(e->y0 / step) * step; y <= e->y1 + step * 1e-9; y += step)
        bd_writer_print(
            out,
            "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#9ca3af' stroke-opacity='.35'/>"
            "<text x='%d' y='%.1f' text-anchor='end'>%.4g</text>\n",
            LEFT, WIDTH - RIGHT, place_y(e, y), place_y(e, y), LEFT - 6, place_y(e, y) + 4, y);
    step = tick_step(e->x1 - e->x0);
    for (double x = ceil(e->x0 / step) * step; x_ticks && x <= e->x1 + step * 1e-9; x += step)
        bd_writer_print(out, "<text x='%.1f' y='%d' text-anchor='middle'>%.6g</text>\n",
                        place_x(e, x), HEIGHT - BOTTOM + 16, x);
    bd_writer_print(
        out, "<text x='%d' y='%d' text-anchor='middle'>%s</text><text x='%d' y='14'>%s</text>\n",
        WIDTH / 2, HEIGHT - 8, x_label, LEFT, y_label);
}

static void begin_chart(bd_writer *out, const char *title)
{
    bd_html_text(out, "h2", title);
    bd_writer_print(out, "<svg viewBox='0 0 %d %d' width='%d' role='img'>\n", WIDTH, HEIGHT, WIDTH);
}

static bool span_of(const bd_series *series, int count, extent *e)
{
    *e = (extent){INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < series[s].count; i++) {
            if (!isfinite(series[s].y[i]))
                continue;
            e->x0 = fmin(e->x0, series[s].x[i]);
            e->x1 = fmax(e->x1, series[s].x[i]);
            e->y0 = fmin(e->y0, series[s].y[i]);
            e->y1 = fmax(e->y1, series[s].y[i]);
        }
    if (!(e->x0 <= e->x1))
        return false;
    if (e->x1 == e->x0)
        e->x1 += 1;
    double margin = e->y1 > e->y0 ? 0.05 * (e->y1 - e->y0) : 0.5;
    e->y0 -= margin;
    e->y1 += margin;
    return true;
}

void bd_html_lines(bd_writer *out, const char *title, const char *x_label, const char *y_label,
                   const bd_series *series, int count)
{
    extent e;
    if (!span_of(series, count, &e))
        return;
    begin_chart(out, title);
    axes(out, &e, x_label, y_label, true);
    for (int s = 0; s < count; s++) {
        bd_writer_print(out, "<polyline fill='none' stroke-width='1.6' stroke='%s' points='",
                        colours[s % COLOURS]);
        // At most about a thousand points: more cannot be seen.
        int64_t stride = series[s].count / 1000 + 1;
        for (int64_t i = 0; i < series[s].count; i += stride)
            if (isfinite(series[s].y[i]))
                bd_writer_print(out, "%.1f,%.1f ", place_x(&e, series[s].x[i]),
                                place_y(&e, series[s].y[i]));
        bd_writer_print(out, "'/><text x='%d' y='%d' text-anchor='end' style='fill:%s'>",
                        WIDTH - RIGHT, TOP + 14 + 16 * s, colours[s % COLOURS]);
        bd_html_escaped(out, series[s].name);
        bd_writer_print(out, "</text>\n");
    }
    bd_writer_print(out, "</svg>\n");
}

void bd_html_bars(bd_writer *out, const char *title, const char *x_label, const char *y_label,
                  const double *values, int64_t count)
{
    if (count == 0)
        return;
    extent e = {0.5, (double)count + 0.5, 0, 1};
    begin_chart(out, title);
    axes(out, &e, x_label, y_label, true);
    double width = 0.7 * (WIDTH - LEFT - RIGHT) / (double)count;
    for (int64_t i = 0; i < count; i++)
        bd_writer_print(
            out,
            "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/><text x='%.1f' y='%.1f' "
            "text-anchor='middle'>%.2f</text>\n",
            place_x(&e, (double)i + 1) - width / 2, place_y(&e, values[i]), width,
            place_y(&e, 0) - place_y(&e, values[i]), colours[0], place_x(&e, (double)i + 1),
            place_y(&e, values[i]) - 4, values[i]);
    bd_writer_print(out, "</svg>\n");
}
