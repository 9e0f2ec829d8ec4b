"""treeplay on one NVIDIA GPU beside eager, `torch.compile`, `reduce-overhead` and the floor.

python -m benchmarks.gpu.run                  every program, and one result file
python -m benchmarks.gpu.run --only NAME      one program
python -m benchmarks.gpu.run --part 1/3       a third of them, where a machine is lent for minutes only
python -m benchmarks.table                    the newest results into docs/speed.md and README.md

The floor is the least that the same kernels can cost: a CUDA graph of them, captured by hand, with inputs and results
where they were captured. It checks nothing, copies nothing and overwrites its results, so nobody can use it as it is.
"""
