"""The daemon's HTTP port: health for supervisors, metrics for Prometheus; with the extra `http`."""
