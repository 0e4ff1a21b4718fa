"""Groups of ranks: collectives, point-to-point, recovery, submission of calls."""
