#!/bin/sh
# A base image from Debian's packages alone, for where no image registry can be reached (needs mmdebstrap, podman):
#   deploy/container/base.sh chronik-base && make container BUILD_ARGS="--build-arg BASE=localhost/chronik-base"
# What follows the name goes to mmdebstrap: --aptopt='Acquire::Check-Valid-Until "false"' takes a mirror that stands still.
set -eu
name=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mmdebstrap "$@" --variant=minbase --include=python3,python3-pip,python-is-python3,ca-certificates \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' "${SUITE:-stable}" "$folder/base.tar"
podman import --change 'CMD ["python"]' "$folder/base.tar" "$name"
