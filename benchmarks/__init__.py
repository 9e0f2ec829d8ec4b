"""treeplay and its peers side by side.

python -m benchmarks.run       measure every program, each in a process of its own, and write one result file
python -m benchmarks.table     put the newest results into docs/speed.md, docs/backend.md and README.md
python -m benchmarks.plot      draw the figure of README.md from them
"""
