# shellcheck shell=bash
# The image, built on a base that this host makes itself, from wheels that its pip fetches: so the
# build needs no network, and uses the package index that pip is configured for here.

base=allhands-base
export ALLHANDS_IMAGE=allhands-under-test

import_base() {
    local archive=$1/base-with-compiler-$codename.tar
    if [ ! -e "$archive" ]; then
        debootstrap_to "$archive.partial"
        mv "$archive.partial" "$archive"
    fi
    podman import --quiet "$archive" "$base" >/dev/null
}

debootstrap_to() {
    local tree=$scratch/base
    debootstrap --variant=minbase --include=python3,python3-venv,python3-dev,openssl,gcc,libc6-dev \
        "$codename" "$tree" "$(mirror)" >"$scratch/debootstrap.log" \
        || { tail "$scratch/debootstrap.log" >&2; fail "debootstrap failed"; }
    tar --directory "$tree" --create --file "$1" --one-file-system \
        --exclude='./dev/*' --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' .
    rm -rf "$tree"
}

mirror() {
    # Where this host has its own packages from.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' "Created-By: Packages" \
        | awk -v suite="$codename" '$2 == suite && $3 == "main" { print $1; exit }'
}

gather_wheels() {
    local directory=$1 version
    version=$(podman run --rm --network none "$base" \
        python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    python - >"$scratch/requirements.txt" <<'END'
import tomllib
from pathlib import Path

pyproject = tomllib.loads(Path("pyproject.toml").read_text())
project = pyproject["project"]
extra = project["optional-dependencies"]["http"]
print(*pyproject["build-system"]["requires"], *project["dependencies"], *extra, sep="\n")
END
    python -m pip --disable-pip-version-check --quiet --no-input download --only-binary=:all: \
        --python-version "$version" --requirement "$scratch/requirements.txt" --dest "$directory"
}

build_image() {
    local wheels=$1
    printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$scratch/pip.conf"
    # Docker's format, because OCI's has no HEALTHCHECK.
    buildah build --quiet --format docker --network none --build-arg "BASE=localhost/$base" \
        --secret "id=pip.conf,src=$scratch/pip.conf" --volume "$wheels:/wheels:ro" \
        --tag "$ALLHANDS_IMAGE" . >"$scratch/build.log" 2>&1 \
        || { tail -n 40 "$scratch/build.log" >&2; fail "the image does not build"; }
}
