#include "format/recipe_value.h"

// clang-format off
// Shorthands for the rows: section, key, default (NULL: unset), range, help.
#define INT(section, key, fallback, low, high, help) \
    {section, key, BD_OPTION_INT, fallback, low, high, false, NULL, help}
#define NUMBER(section, key, fallback, low, high, help) \
    {section, key, BD_OPTION_NUMBER, fallback, low, high, false, NULL, help}
#define ABOVE(section, key, fallback, low, high, help) \
    {section, key, BD_OPTION_NUMBER, fallback, low, high, true, NULL, help}
#define BOOL(section, key, fallback, help) \
    {section, key, BD_OPTION_BOOL, fallback, 0, 0, false, NULL, help}
#define TEXT(section, key, fallback, help) \
    {section, key, BD_OPTION_TEXT, fallback, 0, 0, false, NULL, help}
#define WORD(section, key, fallback, words, help) \
    {section, key, BD_OPTION_WORD, fallback, 0, 0, false, words, help}
#define INTS(section, key, fallback, low, high, help) \
    {section, key, BD_OPTION_INTS, fallback, low, high, false, NULL, help}
#define TEXTS(section, key, fallback, help) \
    {section, key, BD_OPTION_TEXTS, fallback, 0, 0, false, NULL, help}

#define MOST_SIZE  268435456.0  // one dimension of a tensor
#define MOST_COUNT 1e15         // steps, seeds
#define MOST_ID    2147483647.0 // token ids, positions

const bd_recipe_option bd_recipe_table[] = {
    // --- model: an existing folder, or the sizes of a new one
    TEXT("model", "path", NULL, "model folder to train, or the target of a draft"),
    TEXT("model", "tokenizer", NULL, "tokenizer.json or its folder; unset: the model folder's"),
    WORD("model", "family", "qwen3", "llama|qwen2|qwen3", "architecture of a new model"),
    INT("model", "vocab_size", NULL, 2, MOST_SIZE, "new model: rows of the embedding; unset: the tokenizer's"),
    INT("model", "hidden_size", NULL, 1, MOST_SIZE, "new model: width of the residual stream"),
    INT("model", "num_hidden_layers", NULL, 1, 256, "new model: layers"),
    INT("model", "num_attention_heads", NULL, 1, 65536, "new model: query heads"),
    INT("model", "num_key_value_heads", NULL, 1, 65536, "new model: key and value heads"),
    INT("model", "head_dim", NULL, 2, 4096, "new model: size of a head, even"),
    INT("model", "intermediate_size", NULL, 1, MOST_SIZE, "new model: width of the MLP"),
    INT("model", "max_position_embeddings", "4096", 1, MOST_ID, "new model: positions it is meant for"),
    NUMBER("model", "rms_norm_eps", "1e-6", 0, 1, "new model: epsilon of the norms"),
    ABOVE("model", "rope_theta", "10000", 0, 1e15, "new model: base of the rotary frequencies"),
    BOOL("model", "tie_word_embeddings", "true", "new model: the head is the embedding"),
    BOOL("model", "attention_bias", "false", "new model: biases of the attention projections (llama, qwen3)"),
    NUMBER("model", "initializer_range", "0.02", 0, 100, "new model: standard deviation of the weights"),

    // --- data
    TEXTS("data", "train_files", NULL, "text (.txt, .gz, .dz) or conversations (.jsonl) to train on"),
    TEXTS("data", "eval_files", NULL, "the same to evaluate on; unset: held_out_fraction of train_files"),
    NUMBER("data", "held_out_fraction", "0.01", 0, 0.9, "share of the training data kept for evaluation"),
    INT("data", "sequence_length", "1024", 2, MOST_SIZE, "tokens a row"),
    WORD("data", "documents", "file", "file|entries", "a text file is one document, or entries between blank lines"),
    WORD("data", "invalid_utf8", "refuse", "refuse|replace", "text that is not UTF-8: an error, or U+FFFD"),
    BOOL("data", "packing", "true", "several documents in a row"),
    BOOL("data", "completion_only", "false", "conversations: train on answers only (sft: true unless set)"),
    BOOL("data", "last_answer", "false", "conversations: on the last answer only, what follows it is cut"),
    TEXT("data", "chat_template", NULL, "file with a chat template; unset: the tokenizer's"),
    WORD("data", "pad_policy", NULL, "none|to-block-end|eos-in-loss", "trained end tokens; unset: to-block-end in blocks"),
    INT("data", "shuffle_seed", "0", 0, MOST_COUNT, "order of the data, and corruption"),
    TEXT("data", "cache", NULL, "drafts: hidden states from draft cache, instead of train_files"),
    TEXT("data", "listen", NULL, "drafts: address for producers of hidden states, tcp://HOST:PORT or ipc://PATH"),
    WORD("data", "states_dtype", NULL, "fp64|fp32|bf16", "drafts: how hidden states are kept; unset: fp32, or as the cache says"),
    BOOL("data", "states_prenorm", "false", "drafts: keep the last states from before the final norm"),
    INT("data", "stream_ahead", "16", 1, 65536, "drafts: rows asked of producers before they are needed"),
    NUMBER("data", "stream_patience", "0", 0, 1e9, "drafts: seconds without a record that end a run; 0: wait for ever"),

    // --- objective
    WORD("objective", "kind", "causal_lm", "causal_lm|block_diffusion", "next token, or denoising of blocks"),
    INT("objective", "block_size", "32", 1, MOST_ID, "block_diffusion: tokens a block"),
    INT("objective", "mask_id", "-1", -1, MOST_ID, "block_diffusion: mask token, -1: the tokenizer's"),
    ABOVE("objective", "min_noise", "1e-3", 0, 1, "block_diffusion: smallest noise level of a block"),
    WORD("objective", "logit_alignment", "same_position", "same_position|shifted", "which row predicts a token"),
    WORD("objective", "canvas_policy", "all_masked", "all_masked|seed_and_mask", "may a block's first token be masked"),
    WORD("objective", "train_layout", "single", "single|doubled", "earlier blocks as corrupted as their own, or clean"),
    WORD("objective", "noise_weighting", "uniform", "uniform|inverse", "weight of a masked token: 1, or 1 / noise level"),
    NUMBER("objective", "z_loss_multiplier", "0", 0, 1e6, "weight of the squared log-partition"),

    // --- draft: names of the exported configuration, without prefix
    WORD("draft", "projector_type", "dflash", "dflash|dspark|domino|dflash2|lilicorr", "which drafter"),
    INT("draft", "block_size", "8", 2, 4096, "tokens of a drafted block, the anchor included"),
    INT("draft", "num_anchors", "512", 1, MOST_SIZE, "blocks drawn from a row"),
    INT("draft", "mask_token_id", NULL, 0, MOST_ID, "a row of the target's embedding; unset: the tokenizer's"),
    INTS("draft", "target_layer_ids", NULL, 0, 255, "tapped layers; unset: spread evenly and printed"),
    INT("draft", "num_hidden_layers", "5", 1, 256, "layers of the draft"),
    INT("draft", "num_attention_heads", NULL, 1, 65536, "query heads (required)"),
    INT("draft", "num_key_value_heads", NULL, 1, 65536, "key and value heads (required)"),
    INT("draft", "head_dim", NULL, 2, 4096, "size of a head, even (required)"),
    INT("draft", "intermediate_size", NULL, 1, MOST_SIZE, "width of the MLP (required)"),
    WORD("draft", "draft_attention", "bidirectional", "bidirectional|causal", "who sees whom inside a block"),
    BOOL("draft", "attention_sink", "false", "one learnt logit per head that takes attention away from all tokens"),
    INT("draft", "swa_window_size", NULL, 1, MOST_ID, "context tokens a block looks back on; unset: all"),
    WORD("draft", "loss_objective", "dpace", "decay|dpace", "weights of the positions of a block"),
    NUMBER("draft", "loss_decay_factor", "0", 0, 1e6, "gamma of the decay; 0: all weights 1"),
    ABOVE("draft", "dpace_alpha", "0.5", 0, 1, "dpace: floor of a slot's confidence"),
    BOOL("draft", "self_logit_distillation", "true", "learn the target's distribution instead of the label"),
    TEXT("draft", "init_checkpoint", NULL, "weights to start from: a draft folder or file of the same shapes"),
    TEXTS("draft", "freeze", NULL, "tensors that stay as they are, by the beginnings of their names: fc, layers.0"),

    // dspark
    INT("draft", "markov_rank", NULL, 1, MOST_SIZE, "dspark: rank of the head (required)"),
    WORD("draft", "markov_head_type", "vanilla", "vanilla|gated|rnn", "dspark: what the head makes of the token before"),
    BOOL("draft", "use_confidence_head", "false", "dspark: also predict how likely a draft is accepted"),
    NUMBER("draft", "ce_loss_alpha", "0.1", 0, 1e6, "dspark: weight of the cross entropy"),
    NUMBER("draft", "l1_loss_alpha", "0.9", 0, 1e6, "dspark: weight of the distance from the target's distribution"),
    NUMBER("draft", "confidence_head_alpha", "0", 0, 1e6, "dspark: weight of the confidence head's loss"),

    // domino
    INT("draft", "emb_dim", NULL, 1, MOST_SIZE, "domino: inner width of the head (required)"),
    INT("draft", "gru_hidden_dim", NULL, 1, MOST_SIZE, "domino: width of the recurrent unit (required)"),
    INT("draft", "pure_draft_prefix_len", "1", 0, 4095, "domino: first slots that go without the head"),
    NUMBER("draft", "lambda_base_start", "1", 0, 1, "domino: weight of the backbone's own loss at the start"),
    ABOVE("draft", "lambda_base_decay_ratio", "1", 0, 1, "domino: share of the steps over which it falls to 0"),

    // dflash2
    INT("draft", "conv_kernel_size", NULL, 1, 256, "dflash2 (required), lilicorr: taps of the convolutions"),
    INT("draft", "conv_group_size", NULL, 1, MOST_SIZE, "dflash2 (required), lilicorr: channels that share dynamic coefficients"),
    INT("draft", "selector_rank", NULL, 1, MOST_SIZE, "dflash2: width of the selector's codebooks"),
    INT("draft", "selector_top_k", NULL, 1, MOST_SIZE, "dflash2: candidates of a slot"),
    NUMBER("draft", "selector_loss_alpha", "1", 0, 1e6, "dflash2: weight of the selector's loss; 0: not trained"),
    WORD("draft", "lk_loss_type", "ce", "ce|tv|lambda", "dflash2: what a slot pays; tv and lambda without distillation"),
    NUMBER("draft", "lk_ce_scale", "1", 0, 1e6, "dflash2, lambda: share of the cross entropy at the start"),
    NUMBER("draft", "lk_ce_decay", "1", 0, 1e6, "dflash2, lambda: how fast that share falls"),

    // lilicorr
    INT("draft", "lilicorr_candidate_topk", NULL, 1, 64, "lilicorr: candidates of a slot (required)"),
    INT("draft", "lilicorr_hidden_size", NULL, 1, MOST_SIZE, "lilicorr: width of the head; unset: the target's"),
    INT("draft", "lilicorr_num_layers", NULL, 1, 64, "lilicorr: layers of the head (required)"),
    INT("draft", "lilicorr_num_heads", NULL, 1, 65536, "lilicorr: its attention heads (required)"),
    ABOVE("draft", "lilicorr_mlp_ratio", NULL, 0, 1e6, "lilicorr: its MLP's width over its own (required)"),
    INT("draft", "lilicorr_factor_dim", NULL, 1, MOST_SIZE, "lilicorr: width of the factors (required)"),
    ABOVE("draft", "lilicorr_vector_eps", NULL, 0, 0.5, "lilicorr: least norm a factor is divided by (required)"),
    NUMBER("draft", "conv_projection_init_std", "0", 0, 1e6, "lilicorr: deviation its convolutions' coefficients start with"),
    ABOVE("draft", "lilicorr_logit_scale", NULL, 0, 1e6, "lilicorr: what cosines are multiplied by (required)"),
    NUMBER("draft", "lilicorr_w_ce", NULL, 0, 1e6, "lilicorr: weight of the cross entropy (required)"),
    NUMBER("draft", "lilicorr_w_margin", NULL, 0, 1e6, "lilicorr: weight of the margin term (required)"),
    NUMBER("draft", "lilicorr_w_pen", NULL, 0, 1e6, "lilicorr: weight of the penalty (required)"),
    NUMBER("draft", "lilicorr_w_cal", "0", 0, 1e6, "lilicorr: weight of the calibration against the target"),
    ABOVE("draft", "lilicorr_margin", NULL, 0, 1e6, "lilicorr: how far the label should be ahead"),

    // --- distill
    TEXT("distill", "teacher", NULL, "folder of the causal teacher"),
    WORD("distill", "data_source", "dataset", "dataset|student_rollout", "whose completions are scored"),
    WORD("distill", "opd_loss", "forward_kl", "forward_kl|reverse_kl|jsd", "divergence between student and teacher"),
    NUMBER("distill", "alpha", "0.5", 0, 1, "weight of the teacher; 1 - alpha is the weight of the labels"),
    WORD("distill", "alpha_schedule", "constant", "constant|linear|cosine",
         "dataset: alpha from its value to alpha_end over the run"),
    NUMBER("distill", "alpha_end", NULL, 0, 1, "dataset: alpha at the last step"),
    ABOVE("distill", "temperature", "1", 0, 1e6, "softens both distributions"),
    WORD("distill", "temperature_schedule", "constant", "constant|linear|cosine",
         "dataset: temperature from its value to temperature_end over the run"),
    ABOVE("distill", "temperature_end", NULL, 0, 1e6, "dataset: temperature at the last step"),
    INT("distill", "opd_teacher_topk", "0", 0, MOST_SIZE, "teacher entries kept a row, 0: all"),

    // --- rollout
    WORD("rollout", "algorithm", "low_confidence", "low_confidence", "which masked tokens are committed"),
    NUMBER("rollout", "threshold", "0.9", 0, 1, "tokens at least this confident are committed"),
    ABOVE("rollout", "temperature", "1", 0, 1e6, "temperature of sampled tokens"),
    INT("rollout", "max_denoise_steps", "-1", -1, MOST_ID, "most steps a block, -1: block_size"),
    INTS("rollout", "stop_token_ids", "[]", 0, MOST_ID, "tokens that end a completion; []: the tokenizer's"),

    // --- train
    NUMBER("train", "lr", "3e-4", 0, 10, "peak learning rate"),
    INT("train", "max_steps", "1000", 1, MOST_COUNT, "optimizer steps"),
    INT("train", "batch_size", "8", 1, MOST_SIZE, "rows of a micro-batch, over all ranks"),
    INT("train", "grad_accum", "1", 1, 65536, "micro-batches of an optimizer step"),
    NUMBER("train", "warmup_ratio", "0", 0, 1, "share of max_steps that warms up, rounded up"),
    INT("train", "warmup_steps", NULL, 0, MOST_COUNT, "steps that warm up; set, it wins over warmup_ratio"),
    WORD("train", "schedule", "linear", "constant|linear|cosine", "learning rate after warming up"),
    NUMBER("train", "final_lr_fraction", "0", 0, 1, "last learning rate over the peak"),
    NUMBER("train", "weight_decay", "0", 0, 100, "AdamW, on matrices only"),
    NUMBER("train", "adam_b1", "0.9", 0, 0.999999, "AdamW: decay of the first moment"),
    NUMBER("train", "adam_b2", "0.999", 0, 0.999999, "AdamW: decay of the second moment"),
    ABOVE("train", "adam_eps", "1e-8", 0, 1, "AdamW: added to the root"),
    NUMBER("train", "clip", "1", 0, 1e9, "largest global gradient norm, 0: no limit"),
    INT("train", "seed", "0", 0, MOST_COUNT, "initial weights, anchors, sampling"),
    WORD("train", "dtype", "fp32", "fp32|bf16", "what matrix products round their inputs to"),
    WORD("train", "mu_dtype", "fp32", "fp32|bf16", "how the first moment is stored"),
    WORD("train", "nu_dtype", "fp32", "fp32|bf16", "how the second moment is stored"),
    INT("train", "save_every", "0", 0, MOST_COUNT, "steps between checkpoints, 0: at the end only"),
    INT("train", "eval_every", "0", 0, MOST_COUNT, "steps between evaluations, 0: at the end only"),

    // --- parallel
    INT("parallel", "threads", "0", 0, 4096, "threads of a rank, 0: all cores it may use"),
    WORD("parallel", "shard", "none", "none|optimizer|full", "what ranks share out instead of repeating"),

    // --- log
    TEXT("log", "folder", NULL, "the run folder"),
    INT("log", "every", "10", 1, MOST_COUNT, "steps between lines of metrics.jsonl"),
};
const int bd_recipe_table_size = sizeof bd_recipe_table / sizeof bd_recipe_table[0];

const bd_recipe_foreign bd_recipe_foreign_table[] = {
    {"draft", "use_torch_compile", "false", "there is no graph compiler; shapes are always fixed"},
    {"draft", "use_flex_attention", "false", "the block-sparse kernel is always in use"},
    {"draft", "freeze_base_model", "true", "the target is never trained with its draft"},
    {"draft", "fp32_master_weights", "true", "trained parameters are always fp32"},
    {"draft", "report_acc", "true", "accuracy is always logged"},
    {"draft", "offline", "false", "it follows from the data"},
    {"distill", "beta", "0|0.0", "features are not distilled"},
    {"train", "use_tunix_gradient_accumulation", "true|false", "accumulation is always weighted"},
    {"train", "fused_optimizer", "false", "the optimizer has one form"},
};
const int bd_recipe_foreign_size = sizeof bd_recipe_foreign_table / sizeof bd_recipe_foreign_table[0];

const bd_recipe_synonym bd_recipe_synonyms[] = {
    {"learning_rate", "train.lr"},
    {"steps", "train.max_steps"},
    {"gradient_accumulation_steps", "train.grad_accum"},
    {"per_device_train_batch_size", "train.batch_size"},
    {"warmup_steps_fraction", "train.warmup_ratio"},
    {"learning_rate_final_fraction", "train.final_lr_fraction"},
    {"lr_scheduler_type", "train.schedule"},
    {"gradient_clipping_threshold", "train.clip"},
    {"max_grad_norm", "train.clip"},
    {"adam_weight_decay", "train.weight_decay"},
    {"adam_beta1", "train.adam_b1"},
    {"adam_beta2", "train.adam_b2"},
    {"adam_epsilon", "train.adam_eps"},
    {"save_steps", "train.save_every"},
    {"eval_steps", "train.eval_every"},
    {"eval_interval", "train.eval_every"},
    {"logging_steps", "log.every"},
    {"output_dir", "log.folder"},
    {"training_objective", "objective.kind"},
    {"data_shuffle_seed", "data.shuffle_seed"},
    {"max_target_length", "data.sequence_length"},
    {"training_seq_len", "data.sequence_length"},
    {"answer_only_loss", "data.completion_only"},
    {"sft_train_on_completion_only", "data.completion_only"},
    {"distill_rollout_confidence_threshold", "rollout.threshold"},
    {"confidence_threshold", "rollout.threshold"},
};
const int bd_recipe_synonym_count = sizeof bd_recipe_synonyms / sizeof bd_recipe_synonyms[0];
// clang-format on
