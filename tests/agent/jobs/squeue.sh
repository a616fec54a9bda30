#!/bin/sh
echo squeue "$@" >>"$0.asked"
case "$*" in
*--job=1*) printf '%s\n' "$EVIL" ;;
*--job=*) printf 'a\n   UserId=root(0)\n' ;;
*) printf '1|1|eve|nlp|gpu\n3|2_5|ada|bio|gpu\n2|2_7|ada|bio|gpu\n' ;;
esac
