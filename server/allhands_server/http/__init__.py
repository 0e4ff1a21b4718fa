"""The daemon's HTTP port: a page for people, health, metrics; with the extra `http`."""
