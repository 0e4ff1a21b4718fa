"""Code shared by coordinator and workers: wire code by version, values, small tools."""
