"""What programs that train in parallel are made of, above the plain calls."""
