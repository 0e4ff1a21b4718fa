"""`allhands top`: a full-screen view of a coordinator's jobs, groups and ranks.

`rates` derives calls a second from progress counters, `view` makes rows of statuses and rates; both
know neither terminal nor clock. `app` shows the rows, with textual.
"""
