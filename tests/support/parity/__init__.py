"""The parity table: the behaviours that users of c10d rely on."""
