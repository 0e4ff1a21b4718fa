"""The coordinator's log: frames of changes, in the slots of an engine."""
