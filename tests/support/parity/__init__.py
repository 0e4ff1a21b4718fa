"""The table of what users of c10d count on."""
