#!/bin/bash
[ "$1" != -c ] || exit 0
case "$2" in
    venv)
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        echo home >.venv/pyvenv.cfg
        mkdir -p .venv/lib/python3.11/site-packages
        echo pip >.venv/lib/python3.11/site-packages/pip
        ;;
    pip)
        cat .venv/lib/python3.11/site-packages/pip || exit
        case "$*" in
            *--editable*)
                echo here >.venv/lib/python3.11/site-packages/__editable__.dgx_telemetry.pth
                printf '#!/bin/bash\necho up: $(.venv/bin/prometheus)\n' >.venv/bin/dgx-telemetry
                chmod 755 .venv/bin/dgx-telemetry
                ;;
            *) echo package >.venv/lib/python3.11/site-packages/package ;;
        esac
        ;;
esac
