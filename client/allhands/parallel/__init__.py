"""What data-parallel programs are made of, above the collectives."""
