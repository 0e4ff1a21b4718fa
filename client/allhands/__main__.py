"""`python -m allhands`: the command `allhands`, where its script is not on the path."""

from allhands.cli.main import main

if __name__ == "__main__":
    main()
