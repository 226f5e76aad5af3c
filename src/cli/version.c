/* bdlm version - which program, which instruction set, which libraries. */
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdio.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>

#include "base/threads.h"
#include "bdlm/version.h"
#include "cli/command.h"
#include "cli/options.h"
#include "tensor/isa.h"

int bd_command_version(int argc, char **argv)
{
    bool json = false;
    const bd_option list[] = {
        {"json", NULL, BD_ARGUMENT_FLAG, NULL, "as JSON", &json, 0, 0, false}};
    const bd_options options = {.command = "version",
                                .summary =
                                    "Version, the instruction set in use (BDLM_ISA forces another) "
                                    "and the libraries.",
                                .list = list,
                                .count = 1};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("version", &err);
    char pcre[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    char levels[128] = "";
    int used = 0;
    for (int i = 0; i < BD_ISA_COUNT; i++)
        if (bd_isa_supported((bd_isa_level)i))
            used += snprintf(levels + used, sizeof levels - (size_t)used, "%s%s", used ? " " : "",
                             bd_isa_name((bd_isa_level)i));
    const char *format =
        json ? "{\"version\": \"%s\", \"instruction_set\": \"%s\", \"available\": \"%s\", "
               "\"threads\": %d, \"libraries\": {\"jansson\": \"%s\", \"libyaml\": \"%s\", "
               "\"pcre2\": \"%s\", \"utf8proc\": \"%s\", \"zlib\": \"%s\", \"libcrypto\": "
               "\"%s\"}}\n"
             : "bdlm %s\ninstruction set: %s (available: %s)\nthreads: %d\nlibraries: "
               "jansson %s, libyaml %s, pcre2 %s, utf8proc %s, zlib %s, %s\n";
    printf(format, bd_version(), bd_isa_name(bd_isa()), levels, bd_threads_count(),
           jansson_version_str(), yaml_get_version_string(), pcre, utf8proc_version(),
           zlibVersion(), OpenSSL_version(OPENSSL_VERSION));
    return 0;
}
