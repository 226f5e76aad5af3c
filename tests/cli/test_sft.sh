#!/bin/sh
# Denoising pretraining and fine-tuning, small: both objectives from one causal start, the mask token that
# a tokenizer lacks, what is refused, a killed run that goes on to the same bytes.
. tests/cli/lib.sh
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
tells() { wanted_text=$1; shift; quiet "$@" && grep -qF -- "$wanted_text" "$work/err"; }

$BDLM data exercises -n 120 -s 1 >"$work/train.jsonl"
$BDLM data exercises -n 20 -s 2 >"$work/eval.jsonl"
$BDLM data exercises -n 120 --text >"$work/text.txt"
check "exercises are the same everywhere" grep -qxF "{\"prompt\": \"Join: green pink\", \"completion\": \" green, pink\"}" "$work/train.jsonl"
t=$work/tokenizer
quiet "$BDLM" tokenizer train "$work/text.txt" --out "$t" --vocab-size 290
model="--hidden-size 32 --num-hidden-layers 2 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 48"
quick="--sequence-length 48 --batch-size 4 --max-steps 12 --lr 5e-3"
blocks="--kind block_diffusion --block-size 4"
from_text="--train-files $work/text.txt --documents entries"
talk="--train-files $work/train.jsonl"

check "causal start" quiet "$BDLM" pretrain $from_text --tokenizer "$t" --out "$work/causal" $model $quick
check "blocks from nothing" quiet "$BDLM" pretrain $from_text $blocks --tokenizer "$t" --out "$work/blocks" $model $quick
check "the model says so" grep -q '"block_diffusion"' "$work/blocks/latest/config.json"
check "shifted, doubled, inverse noise" quiet "$BDLM" pretrain $from_text $blocks --path "$work/causal/latest" \
    --logit-alignment shifted --canvas-policy seed_and_mask --train-layout doubled --noise-weighting inverse \
    --out "$work/shifted" $quick
check "blocks are kept from the model" tells "blocks of 4, shifted, seed_and_mask" "$BDLM" pretrain $from_text \
    --kind block_diffusion --path "$work/shifted/latest" --out "$work/again" $quick
check "an illegal pair" refuses 1 "logit_alignment shifted does not go with canvas_policy all_masked" \
    "$BDLM" pretrain $from_text $blocks --logit-alignment shifted --path "$work/causal/latest" --out "$work/no" $quick
check "causal on blocks" refuses 1 "objective.kind causal_lm" "$BDLM" pretrain $from_text --path "$work/blocks/latest" \
    --out "$work/no" $quick
check "mask token that ends text" refuses 1 "objective.mask_id" "$BDLM" pretrain $from_text $blocks --out "$work/no" $quick \
    --path "$work/causal/latest" --mask-id "$(sed -n 's/.*"eos_token_id": \([0-9]*\).*/\1/p' "$work/causal/latest/config.json")"

# A model whose tokenizer has no mask token gets one, and a row for it.
cp -r "$work/causal/latest/" "$work/bare"
sed -i 's/<|mask|>/<|spare|>/g' "$work/bare/tokenizer.json"
sed -i '/"mask_token"/d' "$work/bare/tokenizer_config.json"
check "a mask token is added" tells "added to the tokenizer" "$BDLM" sft --path "$work/bare" $talk $blocks \
    --out "$work/added" $quick
check "and saved" grep -q '<|mask|>' "$work/added/latest/tokenizer.json"

check "sft causally" tells "of answers" "$BDLM" sft --path "$work/causal/latest" $talk --out "$work/sft1" $quick
check "sft in blocks" tells "[[" "$BDLM" sft --path "$work/causal/latest" $talk $blocks --eval-files "$work/eval.jsonl" \
    --out "$work/sft2" $quick
check "held-out loss is logged" grep -q '"eval_loss"' "$work/sft2/metrics.jsonl"
check "a checkpoint is a model" quiet "$BDLM" inspect "$work/sft2/latest"
check "a model is needed" refuses 2 "--path MODEL is required" "$BDLM" sft $talk --out "$work/no"
printf '{"prompt": "a"}\n' >"$work/bad.jsonl"
check "file and line" refuses 1 "bad.jsonl:1: a prompt without a completion" "$BDLM" sft --path "$work/causal/latest" \
    --train-files "$work/bad.jsonl" --out "$work/no" $quick
printf '{"text": "a b c"}\n' >"$work/bad.jsonl"
check "all of it answers" refuses 1 "every token of the data is of an answer" "$BDLM" sft --path "$work/causal/latest" \
    --train-files "$work/bad.jsonl" --out "$work/no" $quick

check "inspect" sh -c "$BDLM data inspect $talk $blocks --tokenizer $t --sequence-length 48 -n 3 2>$work/err >$work/out &&
    grep -c '^corruption' $work/out | grep -qv '^[0-2]$'"
check "inspect as JSON" sh -c "[ \$($BDLM data inspect $from_text $blocks --tokenizer $t --sequence-length 24 -n 3 --json \
    2>$work/err | grep -c '\"completion_mask\":\[') = 3 ]"

for recipe in recipes/*.yaml; do
    check "$recipe" quiet "$BDLM" data inspect --recipe "$recipe" $talk --tokenizer "$t" -n 1
done

part="--path $work/causal/latest $talk $blocks $quick --save-every 4"
quiet "$BDLM" sft $part --out "$work/whole"
( "$BDLM" sft $part --out "$work/parts" 2>/dev/null & p=$!
  while [ ! -e "$work/parts/latest" ] && kill -0 $p 2>/dev/null; do sleep 0.01; done; kill -9 $p; wait $p ) 2>/dev/null
quiet "$BDLM" sft $part --out "$work/parts" --resume
check "killed and resumed: the same weights" cmp "$work/whole/latest/model.safetensors" "$work/parts/latest/model.safetensors"
check "other blocks are refused" refuses 1 "block_size" "$BDLM" sft $part --out "$work/whole" --resume --block-size 8
finish
