"""Communication hooks of a `Reducer`; `allhands.hooks` has the public names."""
