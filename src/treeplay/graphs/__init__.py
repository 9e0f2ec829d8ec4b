"""Explicit recordings: say what to record and when to replay it, on CUDA devices and on the CPU.

    g = treeplay.graphs.Graph()
    with treeplay.graphs.graph(g):
        y = model(x)
    x.copy_(batch)
    g.replay()

The names and the order of arguments are those of `torch.cuda`. `treeplay.jit` needs none of this.
"""

from treeplay.graphs.callables import make_graphed_callables
from treeplay.graphs.graph import Graph, graph, is_current_stream_capturing
from treeplay.graphs.pools import graph_pool_handle
from treeplay.values.graph import GraphStatistics

__all__ = [
    "Graph",
    "GraphStatistics",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
]
