"""Documents of Kubernetes and other supervisors: what they say, and their processes run here."""
