"""python -m eyas."""

from eyas.cli import main

main()
