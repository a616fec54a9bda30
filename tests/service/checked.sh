#!/bin/sh
# This machine has no driver that could be looked at.
[ "$1" = check ] || exec /usr/bin/dgx-telemetry "$@"
what=$(cat /run/simulated) begun=$(date +%s.%N)
/usr/bin/dgx-telemetry "$@" --simulate "$what"
status=$?
echo "$what $status $begun $(date +%s.%N)" >>/run/looks
exit $status
