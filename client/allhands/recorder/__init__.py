"""The flight recorder: what this rank called last, where in its program, and how it went."""
