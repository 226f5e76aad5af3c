#include "bdlm/version.h"

const char *bd_version(void)
{
    return BD_VERSION;
}
