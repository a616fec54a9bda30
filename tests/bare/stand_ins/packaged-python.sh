#!/bin/bash
case "$*" in
    -c*) ;;
    "-m venv --without-pip "*)
        mkdir -p "$4/bin" "$4/lib"
        ln -s "$0" "$4/bin/python"
        ;;
    *install*)
        home=${0%/bin/python}
        echo package >"$home/lib/package"
        echo "#!$0" >"$home/bin/dgx-telemetry"
        ;;
    *compileall*) echo bytecode >"${0%/bin/python}/lib/bytecode" ;;
esac
