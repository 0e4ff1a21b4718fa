"""Programs of ranks: functions called by the processes of tests, with the tests' arguments.

A test names a program by its function, as `job(2, messages.exchange, 8)`, and the fork server calls
the function in as many processes as the world has ranks. The test expects what the program reports.
"""
