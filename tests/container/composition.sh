# shellcheck shell=bash
# The composition: brought up in the order that it declares (podman before 4.6 does not wait for
# the health of a dependency itself), looked at from outside, taken down.

project=allhands-test

compose() {
    podman-compose --project-name "$project" "$@"
}

container() {
    podman ps --all --quiet --filter "label=com.docker.compose.project=$project" \
        --filter "label=com.docker.compose.service=$1"
}

find_port() {
    python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

bring_up() {
    ALLHANDS_PORT=$(find_port)
    ALLHANDS_KV_PORT=$(find_port)
    ALLHANDS_HTTP_PORT=$(find_port)
    export ALLHANDS_PORT ALLHANDS_KV_PORT ALLHANDS_HTTP_PORT
    start credentials
    expect_success credentials
    start coordinator
}

start() {
    compose up --detach --no-build --no-deps "$@" >>"$scratch/compose.log" 2>&1 \
        || { tail "$scratch/compose.log" >&2; fail "cannot start $*"; }
}

wait_until_healthy() {
    local id deadline=$((SECONDS + 60))
    id=$(container coordinator)
    # The periodic checks want systemd; the check itself is the same one.
    until podman healthcheck run "$id" >/dev/null 2>&1; do
        [ "$(podman inspect --format '{{.State.Status}}' "$id")" = running ] && [ $SECONDS -lt $deadline ] \
            || { podman logs "$id" >&2; fail "the coordinator is not healthy"; }
        sleep 0.2
    done
    say "the coordinator is healthy"
}

start_workers() {
    start worker-0 worker-1
}

expect_success() {
    local id status
    id=$(container "$1")
    status=$(timeout 120 podman wait "$id") || status="nothing for 120 s"
    podman logs "$id" 2>&1 | sed "s/^/   $1 | /"
    [ "$status" = 0 ] || fail "$1 ended with $status"
}

expect_status_from_outside() {
    local credentials=$1/credentials report
    podman cp "$(container coordinator):/credentials/shared" "$credentials"
    report=$(status_with "$(cat "$credentials/token")" --output json)
    python - "$report" <<'END'
import json
import sys

(job,) = [job for job in json.loads(sys.argv[1])["jobs"] if job["job"] == "demo"]
assert job["world_size"] == 2, job
assert [member["rank"] for member in job["members"]] == [0, 1], job
assert len({member["host"] for member in job["members"]}) == 2, "two containers are two hosts"
END
    status_with "$(cat "$credentials/token")" | sed 's/^/   status | /'
    ! status_with not-the-token >/dev/null 2>&1 || fail "a wrong token was let in"
    say "the status is seen from outside, with the token only"
}

status_with() {
    local token=$1
    shift
    ALLHANDS_TOKEN=$token ALLHANDS_TLS_CA=$scratch/credentials/ca.pem \
        allhands status --coordinator "ah://localhost:$ALLHANDS_PORT" "$@"
}

expect_clean_stop() {
    local id status
    id=$(container coordinator)
    podman stop --time 20 "$id" >/dev/null 2>&1
    status=$(podman inspect --format '{{.State.ExitCode}}' "$id")
    [ "$status" = 0 ] || { podman logs "$id" >&2; fail "the coordinator was stopped and ended with $status"; }
    say "the coordinator drained and ended"
}

take_down() {
    compose down --volumes --timeout 2 >/dev/null 2>&1 \
        || printf 'test-container: the composition was not taken down cleanly\n' >&2
}
