"""This process as a member: how it joins, what it hears of the others, how groups go on."""
