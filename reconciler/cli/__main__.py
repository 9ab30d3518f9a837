"""`python -m reconciler.cli`."""

from reconciler.cli import main

main()
