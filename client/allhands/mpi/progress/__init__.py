"""Progress of messages: frames between processes, their matching, and what is under way."""
