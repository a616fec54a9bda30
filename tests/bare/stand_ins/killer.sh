set -T
one_more() {
    local n
    [ "$BASH_SUBSHELL" = 0 ] || return 0
    read -r n <"$COUNT"
    echo $((n + 1)) >"$COUNT"
    [ "$n" != "$KILLED_AT" ] || kill -9 0
}
trap one_more DEBUG
