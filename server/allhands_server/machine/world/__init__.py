"""Membership of one incarnation of a job: join, failure detection, verdicts, group changes."""
