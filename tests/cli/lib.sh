# lib.sh - for tests of the program. Source it; name each check with `check`; end with `finish`.
# $BDLM is the program, $work a folder of the test's own.
set -u
: "${BDLM:=build/bdlm}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

check() { # check NAME COMMAND...: the command must succeed
    name=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $name"; fi
}

# refuses STATUS TEXT COMMAND...: exit status, and one line "bdlm ...: ..." with TEXT on stderr (for wrong
# usage a second one says how to get help); what was told before the error does not count
refuses() {
    wanted=$1; text=$2; shift 2
    "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status = "$wanted" ] || { echo "exit status $status, wanted $wanted: $*"; cat "$work/err"; return 1; }
    grep -qF -- "$text" "$work/err" || { echo "no \"$text\" in: $(cat "$work/err")"; return 1; }
    lines=$(grep -c '^bdlm' "$work/err")
    [ "$lines" = "$wanted" ] || { echo "$lines error lines, wanted $wanted: $(cat "$work/err")"; return 1; }
}

finish() {
    [ $failed = 0 ] && echo "[  PASSED  ] $passed test(s)." || echo "[  FAILED  ] $failed test(s), listed above"
    [ $failed = 0 ]
}
