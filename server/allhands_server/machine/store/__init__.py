"""Keys, queues and named barriers of a job."""
