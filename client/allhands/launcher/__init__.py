"""The launcher: starts the ranks of a job on this host, carries output, stops all together."""
