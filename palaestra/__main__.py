"""`python -m palaestra` is the command `palaestra`."""

from palaestra.cli import main

if __name__ == "__main__":
    main()
