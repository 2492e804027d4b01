"""`python -m hbc`: the same as the command `hbc`."""

from hbc.cli import main

if __name__ == "__main__":
    main()
