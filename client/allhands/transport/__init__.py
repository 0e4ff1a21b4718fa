"""Moving messages between ranks: frames, links, and the mesh of all of a rank's links."""
