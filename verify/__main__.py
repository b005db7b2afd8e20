"""``python -m verify`` is the same program as ``packparity``."""

from verify.cli.start import main

main()
