"""Membership of this process: joining, events of peers and session, group changes."""
