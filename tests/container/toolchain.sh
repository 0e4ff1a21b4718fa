# shellcheck shell=bash
# The programs that the test needs, and settings under which they work without systemd, without
# Docker's daemon, and apart from whatever else uses podman on this host.

packages=(
    buildah podman runc debootstrap containernetworking-plugins
    golang-github-containernetworking-plugin-dnsname iptables openssl
)

require_toolchain() {
    local distribution
    # shellcheck source=/dev/null
    distribution=$(. /etc/os-release && echo "$ID")
    [ "$distribution" = debian ] || fail "needs Debian, to debootstrap a base; this is $distribution"
    [ "$(id -u)" = 0 ] || fail "needs root, to install packages and to set up networks"
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")

    local missing=() package
    for package in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] \
            || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
        "${missing[@]}" >/dev/null
}

configure_podman() {
    local directory=$1
    # runc and cgroupfs work where there is no systemd, vfs on any file system, and modest ulimits
    # where the limits of this process are modest themselves.
    cat >"$directory/containers.conf" <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$directory/tmp"
[network]
network_backend = "cni"
network_config_dir = "$directory/networks"
END
    cat >"$directory/storage.conf" <<END
[storage]
driver = "vfs"
graphroot = "$directory/storage"
runroot = "$directory/run"
END
    mkdir "$directory/networks"
    export CONTAINERS_CONF=$directory/containers.conf
    export CONTAINERS_STORAGE_CONF=$directory/storage.conf
}
