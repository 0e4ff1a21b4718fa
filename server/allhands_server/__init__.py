"""The coordinator daemon of allhands."""
