"""What coordinator and workers share: wire code by version, values, and small tools."""
