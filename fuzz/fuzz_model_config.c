#include "fuzz.h"

#include <math.h>
#include <string.h>

#include "format/json.h"
#include "format/model_config.h"

/* An accepted configuration passes its own check, has finite frequencies, and is the same after it
 * has been written and read again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bd_error err = {0};
    json_t *root = bd_json_parse((const char *)data, size, "config.json", &err);
    static bd_model_config config, again;
    if (root && bd_model_config_parse(root, "config.json", NULL, &config, &err)) {
        fuzz_promise(bd_model_config_check(&config, "config.json", &err));
        double *frequency = calloc((size_t)config.head_size, sizeof *frequency);
        float factor;
        bd_rope_frequencies(&config.rope, config.head_size, frequency, &factor);
        for (int64_t i = 0; i < config.head_size / 2; i++)
            fuzz_promise(isfinite(frequency[i]));
        fuzz_promise(isfinite(factor));
        free(frequency);
        json_t *first = bd_model_config_to_json(&config);
        fuzz_promise(bd_model_config_parse(first, "config.json", NULL, &again, &err));
        json_t *second = bd_model_config_to_json(&again);
        fuzz_promise(json_equal(first, second));
        json_decref(first);
        json_decref(second);
    } else {
        fuzz_promise(err.message[0]);
    }
    json_decref(root);
    return 0;
}
