#!/bin/sh
# Makes the image debian:bookworm-slim out of Debian's packages, for where no registry can be reached. Needs root.
#
#   docker/base.sh [IMAGE]       e.g. docker/base.sh local/debian:bookworm-slim
#   CA=FOLDER docker/base.sh     puts the *.crt of FOLDER into the image: for networks that sign TLS anew
set -eu
cd "$(dirname "$0")"
image=${1:-debian:bookworm-slim}
fail() { printf '%s; %s\n' "$1" "$2" >&2; exit 3; }
./engine.sh 2000
command -v debootstrap >/dev/null 2>&1 ||
    fail "there is no debootstrap" "cure: apt-get install --no-install-recommends debootstrap"
[ "$(id -u)" = 0 ] || fail "debootstrap needs root" "cure: run this as root"
if [ -n "${CA:-}" ] && ! ls "$CA"/*.crt >/dev/null 2>&1; then
    fail "CA=$CA has no *.crt" "cure: name the folder of the certificates, such as /usr/local/share/ca-certificates"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase bookworm "$work/rootfs" >"$work/log" 2>&1 ||
    fail "debootstrap failed: $(tail -n 1 "$work/log")" "cure: check that Debian's archive can be reached"
if [ -n "${CA:-}" ]; then
    mkdir -p "$work/rootfs/usr/local/share/ca-certificates"
    cp "$CA"/*.crt "$work/rootfs/usr/local/share/ca-certificates/"
fi
tar -C "$work/rootfs" --numeric-owner --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*_*' -c . |
    docker import -c 'CMD ["bash"]' - "$image" >/dev/null
echo "made $image"
