/* bdlm/version.h - which library this is. */
#ifndef BDLM_VERSION_H
#define BDLM_VERSION_H

const char *bd_version(void); /* "0.1.0" */

#endif
