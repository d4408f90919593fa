#!/bin/sh
# Gates CI on FID, or the Fréchet distance of another network: fails the job when generated images are too far from the
# real ones.
#
#   scripts/ci_gate.sh REAL FAKE MAX [more options of `fidtool compute`]
#
# The result goes to a JSON file, fid.json or what FID_JSON names: keep it as the job's artifact. stdout carries
# fidtool's own output with the distance's name, stderr the verdict. The exit status is fidtool's own:
#
#   0  the distance is at most MAX
#   1  the run failed: no verdict (try again, or look at the machine)
#   2  bad usage or bad input: no verdict (mend the call or the images)
#   3  the distance is above MAX: the gate is missed
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

# A run that ends before there is a result must not leave an earlier run's result behind.
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
