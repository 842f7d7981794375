#!/bin/sh
# For mom's configuration: $varattr 10 /path/to/varattr.sh [FILE [SECONDS]]
# Mom waits for this script, so it measures nothing and starts no program: it prints the sampler's file, unless
# that was written more than SECONDS ago (the sampler is gone: then the server's own figures serve). The first
# line says when, in seconds since boot. Mom's buffer for all varattr scripts is 9 KiB and not guarded, hence
# never more than 4 KiB.
file=${1:-/var/spool/torque/aux/torque-sched.sample}
limit=${2:-60}
{ read -r up _ </proc/uptime && read -r first <"$file"; } 2>/dev/null || exit 0
written=${first#ts.up:}
case $written in '' | *[!0-9]*) exit 0 ;; esac
age=$((${up%%.*} - written))
[ "$age" -ge 0 ] && [ "$age" -le "$limit" ] || exit 0
room=4096
while IFS= read -r line; do
    room=$((room - ${#line} - 1))
    [ "$room" -ge 0 ] || break
    printf '%s\n' "$line"
done <"$file"
exit 0
