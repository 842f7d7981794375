#!/bin/sh
# Says whether there is an engine that images can be built with and run on here; else one line with the cure.
#
#   docker/engine.sh [MIB [build | compose | image NAME]]   MIB: what must be free where the engine keeps its images;
#                                                           build: images are built; compose: compose.yaml is used;
#                                                           image: containers of NAME are started
set -eu
needed_mib=${1:-0}
lowest_compose=2.17
compose_package="docker-compose, on Debian 12 from Debian 13 (docs/docker.md); of Docker's repository docker-compose-plugin"
fail() { printf '%s; %s\n' "$1" "$2" >&2; exit 3; }
command -v docker >/dev/null 2>&1 ||
    fail "there is no docker client on PATH" "cure: apt-get install --no-install-recommends docker.io"
case "${DOCKER_HOST:-}" in "" | unix://*) ;; *)
    fail "DOCKER_HOST=$DOCKER_HOST is an engine on another machine, whose ports and folders are not here" \
        "cure: unset DOCKER_HOST" ;;
esac
if ! said=$(docker version --format '{{.Server.Version}}' 2>&1); then
    case "$said" in
    *"permission denied"*)
        fail "this user may not use the engine's socket" "cure: as root, or usermod -aG docker \$USER and log in again" ;;
    *) fail "no engine answers at ${DOCKER_HOST:-unix:///var/run/docker.sock}" \
        "cure: systemctl start docker, or as root: sysctl -w net.ipv4.ip_forward=1 && dockerd &" ;;
    esac
fi
root=$(docker info --format '{{.DockerRootDir}}' 2>/dev/null || true)
if [ "$needed_mib" -gt 0 ] && [ -n "$root" ] && [ -d "$root" ]; then
    free_mib=$(df -Pm "$root" | awk 'NR == 2 { print $4 }')
    [ "$free_mib" -ge "$needed_mib" ] ||
        fail "$root has $free_mib MiB free, $needed_mib MiB are needed" "cure: remove images you know, or move the engine's data-root"
fi
# A client as of 23 builds with a plugin, older ones have BuildKit in them.
if [ "${2:-}" = build ] && ! docker buildx version >/dev/null 2>&1; then
    client=$(docker version --format '{{.Client.Version}}' 2>/dev/null || true)
    case "${client%%.*}" in 18 | 19 | 20) ;; *)
        fail "the docker client ${client:-on PATH} has no plugin buildx, which builds images" \
            "cure: apt-get install docker-buildx, on Debian 12 from Debian 13 (docs/docker.md); or take the client of docker.io" ;;
    esac
fi
if [ "${2:-}" = compose ]; then
    compose=$(docker compose version --short 2>/dev/null) ||
        fail "the docker client has no command compose" \
            "cure: apt-get install $compose_package"
    echo "${compose#v} $lowest_compose" | awk -F '[. ]' '{ exit !($1 > $(NF - 1) || $1 == $(NF - 1) && $2 >= $NF) }' ||
        fail "this is Compose ${compose#v}, and $lowest_compose is the lowest that was tried" \
            "cure: apt-get install $compose_package"
fi
if [ "${2:-}" = image ] && ! docker image inspect "$3" >/dev/null 2>&1; then
    fail "there is no image $3" "cure: make docker-images"
fi
