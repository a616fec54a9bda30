#!/bin/bash
case "$*" in
    *--download-only*)
        head -c 300 "$PACKAGE" >.venv/apt/cache/archives/prometheus.deb
        cp "$PACKAGE" .venv/apt/cache/archives/prometheus.deb
        ;;
esac
