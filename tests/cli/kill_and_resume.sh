# kill_and_resume RUN KILLS SEED OPTIONS...: train with `distill`, killed with -9 after random times (the
# first soon enough to fall before any checkpoint), resumed each time, and to the end at last. The times
# follow from SEED; how many kills struck is told.
kill_and_resume() {
    run=$1 kills=$2 seed=$3
    shift 3
    struck=0
    resume=
    times=$(awk -v n="$kills" -v s="$seed" 'BEGIN { srand(s); for (i = 0; i < n; i++) printf "%.3f\n", i ? rand() * 0.9 : 0.15 }')
    for seconds in $times; do
        (replace=exec; distill "$run" $resume "$@" >"$work/out" 2>"$work/err") &
        process=$!
        sleep "$seconds"
        kill -9 $process 2>/dev/null && struck=$((struck + 1))
        wait $process 2>/dev/null
        [ -d "$run" ] && resume=--resume
    done
    echo "$struck of $kills kills struck, times from seed $seed"
    quiet distill "$run" $resume "$@"
}
