"""The parity table: the behaviours on which users of c10d rely."""
