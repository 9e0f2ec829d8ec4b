"""treeplay records what a PyTorch program does on a device once, and replays it for the price of one launch."""
