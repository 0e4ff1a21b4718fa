"""How each bucket of gradients becomes its average; `allhands.hooks` has the public names."""
