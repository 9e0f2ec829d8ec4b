"""Programs as users of PyTorch write them, held back from the tests: every way of running them against eager."""
