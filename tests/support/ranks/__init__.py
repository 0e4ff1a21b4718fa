"""Ranks as processes: forked quickly, controlled by the test, cut off from each other."""
