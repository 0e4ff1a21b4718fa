"""The page of the HTTP port: jobs, groups and ranks, pushed to browsers as they change."""
