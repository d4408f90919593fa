#!/bin/sh
# Gates CI on FID: fails the job when generated images are too far from the real ones.
#
#   scripts/ci_gate.sh REAL FAKE MAX_FID [more options of `fidtool compute`]
#
# The result goes to a JSON file, fid.json or what FID_JSON names: keep it as the job's artifact. stdout carries
# fidtool's own output, stderr the verdict. The exit status is fidtool's own:
#
#   0  the FID is at most MAX_FID
#   1  the run failed: no verdict (try again, or look at the machine)
#   2  bad usage or bad input: no verdict (mend the call or the images)
#   3  the FID is above MAX_FID: the gate is missed
set -eu

if [ "$#" -lt 3 ]; then
    echo "usage: $0 REAL FAKE MAX_FID [more options of fidtool compute]" >&2
    exit 2
fi
real=$1
fake=$2
max_fid=$3
shift 3
report=${FID_JSON:-fid.json}

# A run that ends before there is a result must not leave an earlier run's result behind.
if [ -f "$report" ]; then
    rm -f -- "$report"
fi

status=0
fidtool compute "$real" "$fake" --fail-above "$max_fid" --output "$report" "$@" || status=$?

case $status in
    0) echo "FID gate PASSED: at most $max_fid (details in $report)" >&2 ;;
    3) echo "FID gate MISSED: above $max_fid (details in $report)" >&2 ;;
    2) echo "FID gate NOT EVALUATED: bad usage or bad input (status 2)" >&2 ;;
    *) echo "FID gate NOT EVALUATED: fidtool failed (status $status)" >&2 ;;
esac
exit "$status"
