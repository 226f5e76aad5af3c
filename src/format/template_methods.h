/* template_methods.h - work on texts and dicts that methods and filters share. */
#ifndef BD_FORMAT_TEMPLATE_METHODS_H
#define BD_FORMAT_TEMPLATE_METHODS_H

#include "format/template_internal.h"

/* Without the characters of `set` (not a text: white space) at its ends; no copy. */
value text_strip(value v, value set, bool left, bool right);

typedef enum { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZED, CASE_TITLE } text_case;
bool text_change_case(render *r, value v, text_case wanted, value *out);

/* At most `most` times; -1: everywhere. */
bool text_replace(render *r, value v, value from, value to, int64_t most, value *out);

/* The elements of a list as text, with `between` between them. */
bool text_join(render *r, value list, value between, value *out);

/* A dict's (key, value) pairs. */
bool dict_items(render *r, value v, value *out);

#endif
