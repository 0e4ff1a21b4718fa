"""Datatypes: what elements of buffers are, and where their parts lie."""
