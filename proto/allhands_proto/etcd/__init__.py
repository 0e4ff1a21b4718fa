"""Generated code of etcd's third API, as far as the coordinator's log uses the API."""
