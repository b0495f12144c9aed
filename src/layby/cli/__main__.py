"""`python -m layby.cli`, for when the `layby` script is not on the path."""

from layby.cli.main import main

main()
