"""Work: handles on calls that run elsewhere, and the kinds of them."""
