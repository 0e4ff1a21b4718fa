"""Windows: memory that ranks open to one another for one-sided operations."""
