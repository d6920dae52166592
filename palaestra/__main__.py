"""`python -m palaestra` is the command `palaestra`."""

from palaestra.commands.cli import main

if __name__ == "__main__":
    main()
