#!/bin/sh
# Without a driver, what may be opened is no such device; what may not is not permitted.
for n in 0 1 2 3; do
    case $(cat /dev/nvidia$n 2>&1) in *"No such device"*) echo $$ >/run/gpus/$n ;; esac
done
sleep "$1"
until [ -e /run/seen ]; do sleep 1; done
