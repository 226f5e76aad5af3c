/* probe_lattice.h - what the golden cases of DFlash2 and LiLiCorr have beyond those of other
 * drafters: candidates and the scores among them. */
#ifndef BD_CLI_PROBE_LATTICE_H
#define BD_CLI_PROBE_LATTICE_H

#include "cli/probe.h"
#include "draft/session.h"
#include "draft/step.h"

/* Their options, into an objective that has the common ones. */
void bd_probe_lattice_objective(bd_probe *probe, json_t *options, bd_draft_objective *objective);

/* Tensors of a training step, made from its hidden states [B, N * bs, H]. */
void bd_probe_lattice_step(bd_probe *probe, bd_draft *draft, const bd_draft_batch *batch,
                           const float *hidden);

/* Tensors of one drafted block behind `base`. */
void bd_probe_lattice_draft(bd_probe *probe, bd_draft *draft, size_t index, int32_t base,
                            const bd_proposal *proposal);

#endif
