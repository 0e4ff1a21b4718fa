# Any Debian does as a base: what Python itself is lacking comes from Debian's packages.
# Packages of Python come from where your pip finds them; hand its configuration in with
#   docker build --secret id=pip.conf,src=$HOME/.config/pip/pip.conf .
ARG BASE=python:3.13-slim

FROM ${BASE} AS python
# The base decides the versions of its packages, so none is pinned here.
# hadolint ignore=DL3008
RUN if ! { python3 -c 'import ensurepip, venv' && command -v openssl; }; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends python3 python3-venv openssl \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later, please")'

FROM python AS build
# What compiles the native core stays in this stage. A Python that is not Debian's has its headers.
# hadolint ignore=DL3008
RUN headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') \
    && set -- \
    && if ! command -v gcc; then set -- gcc libc6-dev; fi \
    && if ! test -e "$headers/Python.h"; then set -- "$@" python3-dev; fi \
    && if [ $# -gt 0 ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends "$@" \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -m venv /opt/allhands
WORKDIR /src
COPY pyproject.toml hatch_build.py hatch_metadata.py README.md LICENSE ./
COPY proto proto
COPY server server
COPY client client
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    ALLHANDS_NATIVE=require /opt/allhands/bin/pip install --no-cache-dir '.[http]'

FROM python
# A fixed number, so that volumes keep their owner across builds. The directories are mount points.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin allhands \
    && install -d -o allhands -g allhands -m 0700 /data /credentials/shared /credentials/own
COPY --from=build /opt/allhands /opt/allhands
COPY container/make-credentials.sh /opt/allhands/bin/
WORKDIR /opt/allhands
COPY examples examples
ENV PATH=/opt/allhands/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /data
EXPOSE 7070
HEALTHCHECK --interval=5s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-m", "allhands_server.healthcheck", "localhost:7070"]
ENTRYPOINT ["allhands"]
CMD ["--help"]
