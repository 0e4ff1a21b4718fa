"""Programs of ranks: functions that the processes of tests call, with arguments from there.

A test names one by its function, as `job(2, messages.exchange, 8)`, and the fork server calls it in
as many processes as the world has ranks. What a program tells, the test expects.
"""
