"""Data for the demo, the benchmarks and the tests. Loaders download the real data set; where that is impossible (no network) they say
so and generate data of the same shape and kinds, so that everything else still runs."""

from datasets.newsgroups import load_newsgroups
from datasets.paper import PAPER, DataSet, Table, load_paper
from datasets.titanic import load_titanic

__all__ = ["PAPER", "DataSet", "Table", "load_newsgroups", "load_paper", "load_titanic"]
