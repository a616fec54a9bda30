# shellcheck shell=bash
# Sourced by the commands that set up, which stand in the root of the repository. A step is reported
# when it begins, and how far it is for as long as it takes: every second on a terminal, every five
# elsewhere. What its programs say goes to .venv/log, and is only said where the step fails.
# SETUP_STEP and SETUP_STEPS, where a caller sets them, number the steps of all commands together.
unset CDPATH
log=.venv/log
me=$(basename -- "$0")

# complain SENTENCE
complain() {
    echo "$me: $1" >&2
}

# prepare: makes .venv, and waits until no one else works in it.
prepare() {
    if ! mkdir -p .venv 2>/dev/null || ! : 2>/dev/null >>.venv/lock; then
        complain "$PWD/.venv cannot be written ($(why_not_written)): the commands below deploy/ need a clone that is your own"
        exit 1
    fi
    [ -z "${SETUP_LOCKED:-}" ] || return 0
    export SETUP_LOCKED=1
    command -v flock >/dev/null || return 0
    exec 9>>.venv/lock
    if ! flock -n 9; then
        echo "waiting for another command that sets up $PWD/.venv" >&2
        flock 9
    fi
    rm -f "$log" "$log.before"
}

why_not_written() {
    if disk_is_full; then echo "the disk is full"; else echo "no right to, or a read-only disk"; fi
}

disk_is_full() { # less than 2 MB are left
    local left
    left=$(df -k --output=avail .venv 2>/dev/null | tail -n 1)
    [ -n "$left" ] && [ "$left" -lt 2048 ]
}

# step TEXT HOW_FAR COMMAND...: runs the command; HOW_FAR prints how far it is, from the log.
# In a function that is run so bash does not end at the first failure: each line says `|| return`.
step() {
    local text=$1 how_far=$2 status=0 watcher
    shift 2
    echo "[$SETUP_STEP/$SETUP_STEPS] $text" >&2
    watch_step "$how_far" 9>&- &
    watcher=$!
    cat "$log" 2>/dev/null >>"$log.before" || true
    "$@" >"$log" 2>&1 </dev/null || status=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    [ ! -t 2 ] || printf '\r\033[K' >&2
    return "$status"
}

watch_step() {
    local how_far=$1 began=$SECONDS far every=5
    [ ! -t 2 ] || every=1
    while sleep "$every" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        far=$($how_far 2>/dev/null || true)
        far="      ${far:+$far, }$((SECONDS - began)) s"
        if [ -t 2 ]; then printf '\r\033[K%s' "$far" >&2; else echo "$far" >&2; fi
    done
}

# reason: why the last step failed, in a few words. The one before may say it: apt ends well without
# the lists that it could not fetch.
reason() {
    local said
    if disk_is_full || grep -qiE 'no space left|not enough free space|disk quota exceeded' "$log" 2>/dev/null; then
        echo "the disk is full"
    elif said=$(grep -oiE "(temporary failure|could not|failed to) resolv[^;,']*|network is unreachable|no route to host|could not connect to [^ ]*|connection (refused|timed out|reset[a-z ]*)|read timed out|certificate verify failed|name or service not known|max retries exceeded" -h "$log" "$log.before" 2>/dev/null | head -n 1) && [ -n "$said" ]; then
        echo "no network, or its server does not answer ($said)"
    elif said=$(grep -oE 'No matching distribution found for [^ ]*' -h "$log" 2>/dev/null | tail -n 1) && [ -n "$said" ]; then
        echo "PyPI cannot be reached, or has none for this Python ($said)"
    else
        said=$(grep -E '^(E:|ERROR:|error:)' "$log" 2>/dev/null | tail -n 1)
        [ -n "$said" ] || said=$(grep -v '^[[:space:]]*$' "$log" 2>/dev/null | tail -n 1)
        echo "${said:-it said nothing}"
    fi
}

# may_install: whether packages of the system can be installed: as root, or with sudo; its
# password is only asked for on a terminal, from those whom sudo knows.
may_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" != 0 ] || return 0
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null && return
    [ -t 0 ] && [ -t 2 ] && id -nG | grep -qwE 'sudo|admin|wheel' && sudo -v
}

# Sets `sources`, options of apt. Ubuntu keeps Prometheus, Python's venv and much of what tests need
# in a part of its archive that a small system does not ask for, and the right Python for 22.04 among
# its updates: these commands ask for both, and leave the system's own sources as they are.
widen_sources() {
    local file release
    sources=()
    grep -qs '^ID=ubuntu$' /etc/os-release || return 0
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mkdir -p .venv/sources || return
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -e "$file" ] || sed -nE "s/^deb (.* |)([^ ]+) $release .*\bmain\b.*/deb \1\2 $release main universe\ndeb \1\2 $release-updates main universe/p" "$file"
    done >.venv/sources/sources.list || return
    for file in /etc/apt/sources.list.d/*.sources; do
        [ ! -e "$file" ] || sed -E "/universe/!s/^Components:.*/& universe/; /$release-updates|-security/!s/^Suites:.*\b$release\b/& $release-updates/" "$file" >".venv/sources/${file##*/}" || return
    done
    sources=(-o Dir::Etc::sourcelist=./.venv/sources/sources.list -o Dir::Etc::sourceparts=./.venv/sources)
}

# of_system PROGRAM ARGUMENT...: one of apt's programs, for the system itself.
of_system() {
    local as_root=() sources
    widen_sources || return
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C "$1" "${sources[@]}" "${@:2}"
}

# install PACKAGE...: into the system.
install() {
    of_system apt-get install -q -y --no-install-recommends "$@"
}

refresh_lists() {
    of_system apt-get update -q
}

# fetched_by_apt: how far its last download, or installation, is.
fetched_by_apt() {
    local size packages ready
    size=$(sed -nE 's/^Need to get ([0-9.,]+ [kM]?B).*/\1/p' "$log" | tail -n 1)
    packages=$(sed -nE 's/^([0-9]+) upgraded, ([0-9]+) newly installed.*/\1+\2/p' "$log" | tail -n 1)
    packages=$((packages))
    ready=$(grep -c '^Setting up ' "$log")
    if [ "$ready" != 0 ]; then
        echo "$ready of $packages packages set up"
    elif [ -n "$size" ]; then
        echo "$(sed '1,/^Need to get/d' "$log" | grep -c '^Get:') of $packages packages fetched, $size in all"
    fi
}
