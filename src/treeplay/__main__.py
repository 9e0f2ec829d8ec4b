"""`python -m treeplay`: the command `treeplay`."""

from treeplay.cli import main

main()
