#!/bin/sh
# Make what closes the composition to strangers: a random token, an authority, and the
# coordinator's certificate. Nothing happens while those of an earlier start are good.
#
#   make-credentials.sh SHARED OWN NAME
#
# SHARED gets what every client needs: `token` and `ca.pem`. OWN gets what the coordinator alone
# may read: `tls-cert.pem` and `tls-key.pem`. NAME is the host name that clients dial.
set -eu
umask 077

shared=$1
own=$2
name=$3
month=2592000 # seconds

if [ -s "$shared/token" ] && openssl x509 -noout -checkend "$month" -in "$own/tls-cert.pem" 2>/dev/null; then
    echo "the credentials of an earlier start are still good"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

new_key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

new_key ca-key.pem
openssl req -x509 -new -key ca-key.pem -out ca.pem -days 365 -subj "/CN=allhands composition" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign"

new_key tls-key.pem
openssl req -new -key tls-key.pem -out request.pem -subj "/CN=$name"
# localhost is for clients on the host, through the published port.
cat >extensions <<END
subjectAltName=DNS:$name,DNS:localhost,IP:127.0.0.1
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
END
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 365 \
    -extfile extensions -out tls-cert.pem 2>/dev/null

openssl rand -hex 32 >token

# The authority's key goes with the scratch directory: nobody signs with it again.
mv tls-cert.pem tls-key.pem "$own"
mv ca.pem token "$shared"
echo "made a token and a certificate for $name"
