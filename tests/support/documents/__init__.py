"""Pages of the project's documents, and what stands in them: links, anchors, blocks of code."""
