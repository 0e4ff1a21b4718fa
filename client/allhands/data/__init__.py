"""Values as bytes: names of dtypes, the encoding of messages, objects, sparse arrays."""
