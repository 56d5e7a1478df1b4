"""`python -m chronik`: the command line, where its script is not on the PATH."""

from chronik.cli import main

if __name__ == "__main__":
    main()
