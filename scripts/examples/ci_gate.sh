#!/bin/sh
# Example: a quality gate for CI. It fails the job if the FID, or the Fréchet distance of another network, is above MAX.
#
#   scripts/examples/ci_gate.sh REAL FAKE MAX [more options of fidtool compute]
#   scripts/examples/ci_gate.sh real.npz fake/ 20
#
# It prints fidtool's output to stdout and the verdict to stderr:
#
#   FID: 12.3456
#   gate PASSED: at most 20 (details in fid.json)
#
# The result is also written to fid.json, or to the file that the variable FID_JSON names: keep it as an artifact of the
# job. The exit status is that of fidtool:
#
#   0  the distance is at most MAX
#   1  the run failed: no verdict (try again, or check the machine)
#   2  bad usage or bad input: no verdict (fix the command or the images)
#   3  the distance is above MAX
set -eu

if [ "$#" -lt 3 ]; then
    echo "usage: $0 REAL FAKE MAX [more options of fidtool compute]" >&2
    exit 2
fi
real=$1
fake=$2
max=$3
shift 3
report=${FID_JSON:-fid.json}

# If the run fails before it has a result, no earlier result must remain.
if [ -f "$report" ]; then
    rm -f -- "$report"
fi

status=0
fidtool compute "$real" "$fake" --fail-above "$max" --output "$report" "$@" || status=$?

case $status in
    0) echo "gate PASSED: at most $max (details in $report)" >&2 ;;
    3) echo "gate MISSED: above $max (details in $report)" >&2 ;;
    2) echo "gate NOT EVALUATED: bad usage or bad input (status 2)" >&2 ;;
    *) echo "gate NOT EVALUATED: fidtool failed (status $status)" >&2 ;;
esac
exit "$status"
