"""Client of the coordinator: its endpoint, the session of a member, keys and values, job status."""
