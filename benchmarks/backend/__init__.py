"""Real models from published configurations with random weights: are they right, and what does a call cost.

python -m benchmarks.backend.run                        every model at its published size, one result file
python -m benchmarks.backend.run --size tiny            the sizes of the tests: seconds a model
python -m benchmarks.backend.run --check --workers 4    results and gradients only, four models at a time
"""
