"""Start the ranks of a job on this host, carry their output, and end them together."""
