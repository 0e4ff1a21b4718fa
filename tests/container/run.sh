#!/usr/bin/env bash
# Prove the container files on a machine without Docker and without an image registry: build the
# image on a debootstrapped Debian, start the composition, see its job succeed and the coordinator
# answer from outside. Leaves nothing behind but installed packages, the cache directory, and empty
# chains of the firewall.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# shellcheck source=tests/container/toolchain.sh
source tests/container/toolchain.sh
# shellcheck source=tests/container/image.sh
source tests/container/image.sh
# shellcheck source=tests/container/composition.sh
source tests/container/composition.sh

say() {
    printf '== %3d s: %s\n' "$SECONDS" "$*"
}

fail() {
    printf 'test-container: %s\n' "$*" >&2
    exit 1
}

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/allhands-container
mkdir -p "$cache"

require_toolchain
scratch=$(mktemp -d /var/tmp/allhands-container.XXXXXX)
trap 'take_down; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
configure_podman "$scratch"

say "base: Debian $codename"
import_base "$cache"
say "wheels of what the project needs"
gather_wheels "$cache/wheels-$codename"
say "image"
build_image "$cache/wheels-$codename"
say "composition"
bring_up
wait_until_healthy
start_workers
expect_success worker-0
expect_success worker-1
expect_status_from_outside "$scratch"
expect_clean_stop
say "passed"
