"""`python -m app.cli` is the `stagetree` command."""

from app.cli import main

main()
