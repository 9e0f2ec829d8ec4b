"""treeplay and its peers side by side.

python -m benchmarks.run       measure every program, each in a process of its own, and write one result file
python -m benchmarks.table     put the newest result file into README.md
"""
