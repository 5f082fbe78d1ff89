#!/usr/bin/env bash
# A Docker Engine for the tests, on a socket of its own (Debian, as root):
#   eval "$(scripts/docker_for_tests.sh start)"   install what is missing, start it, name it to the tests
#   scripts/docker_for_tests.sh stop              end it; its images stay in the cache folder
set -euo pipefail
folder=${XDG_CACHE_HOME:-$HOME/.cache}/sgl-tuner/docker
run=/run/sgl-tuner-docker
base=sgl-tuner-base:1
export DOCKER_HOST=unix://$run/docker.sock

install_missing() {
  command -v dockerd >/dev/null && command -v debootstrap >/dev/null &&
    command -v docker-registry >/dev/null && command -v podman >/dev/null && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    docker.io tini iptables debootstrap docker-registry podman catatonit >/dev/null
}

launch() { # STORAGE_DRIVER
  nohup dockerd --storage-driver="$1" --host "$DOCKER_HOST" --data-root "$folder/$1" \
    --exec-root "$run/exec" --pidfile "$run/pid" >"$folder/dockerd.log" 2>&1 &
  for _ in $(seq 60); do
    docker info >/dev/null 2>&1 && return
    kill -0 $! 2>/dev/null || return 1
    sleep 0.5
  done
  return 1
}

make_base() {
  docker image inspect "$base" >/dev/null 2>&1 && return
  local root
  root=$(mktemp -d)
  debootstrap --variant=minbase --include=python3,ca-certificates bookworm "$root" >/dev/null
  tar -C "$root" -c . | docker import - "$base" >/dev/null
  rm -rf "$root"
}

start() {
  mkdir -p "$folder" "$run"
  docker info >/dev/null 2>&1 || launch overlay2 || launch vfs || {
    tail -n 5 "$folder/dockerd.log" >&2
    return 1
  }
  make_base
  echo "export SGL_TUNER_TEST_DOCKER=$DOCKER_HOST SGL_TUNER_TEST_BASE=$base"
}

case ${1:-} in
  start) install_missing >&2 && start ;;
  stop) [ ! -e "$run/pid" ] || kill "$(cat "$run/pid")" ;;
  *) sed -n '2,4s/^# //p' "$0" >&2 && exit 2 ;;
esac
