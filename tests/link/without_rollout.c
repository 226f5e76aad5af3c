/* In place of rollouts to learn from: a program linked with --wrap=bd_prepare_rollout comes here. */
#include "distill/prepare.h"

bool __wrap_bd_prepare_rollout(bd_distiller *distiller, const bd_distill_rows *rows,
                               const bd_rollout_observer *observer, bd_arena *arena,
                               bd_prepared *out, bd_error *err);

bool __wrap_bd_prepare_rollout(bd_distiller *distiller, const bd_distill_rows *rows,
                               const bd_rollout_observer *observer, bd_arena *arena,
                               bd_prepared *out, bd_error *err)
{
    (void)distiller, (void)rows, (void)observer, (void)arena, (void)out;
    return bd_fail(err, "rollouts are not linked in");
}
