"""``python -m verify`` is the same program as ``packparity``."""

from verify.cli.app import main

main()
