/* huge.h - memory for weights, in huge pages even where each matrix is small.
 *
 * A small model has dozens of matrices of a few hundred kilobytes, and a token reads all of them.
 * On pages of 4 KB that stream is slowed by page walks (several times, in a virtual machine), and
 * so is the first touch. Blocks up to a few megabytes are therefore cut from shared chunks of huge
 * pages; larger ones get pages of their own. A chunk is given back when its last block is freed.
 *
 *     float *w = bd_huge_alloc(bytes);
 *     bd_huge_free(w);
 */
#ifndef BD_BASE_HUGE_H
#define BD_BASE_HUGE_H

#include <stddef.h>

/* 64-byte aligned, contents undefined; NULL: no memory. Any thread. */
void *bd_huge_alloc(size_t bytes);
void bd_huge_free(void *memory); /* NULL is fine */

#endif
