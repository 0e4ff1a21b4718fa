"""Ranks as processes: forked quickly, told what to do, cut off from one another."""
