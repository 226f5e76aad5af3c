/* checkpoint_files.h - the files of a checkpoint and their hashes: trainer.json inside the room.
 *
 * trainer.json lists every other file of its folder with size and SHA-256, and ends with the hash
 * of itself (of its compact text with sorted keys, without that field).
 */
#ifndef BD_TRAIN_CHECKPOINT_FILES_H
#define BD_TRAIN_CHECKPOINT_FILES_H

#include <jansson.h>

#include "base/error.h"

#define BD_TRAINER_JSON  "trainer.json"
#define BD_TRAINER_STATE "trainer_state.safetensors"

/* Sync every file of `folder`, add "files" and "sha256" to `root`, save it as trainer.json there.
 */
bool bd_checkpoint_seal(const char *folder, json_t *root, bd_error *err);

/* trainer.json of the folder, after every file has been checked against it. json_decref() it. */
json_t *bd_checkpoint_unseal(const char *folder, bd_error *err);

#endif
