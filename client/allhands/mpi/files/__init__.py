"""Files that the ranks of a communicator read and write together."""
