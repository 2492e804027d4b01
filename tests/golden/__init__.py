"""Golden programs: the optimized graph and the generated code of some sixty models, kept as text.

    make golden                      render them anew and keep them
    make golden-diff                 print how the programs of now differ from the kept ones
    python -m golden --values FOLDER write the texts with every number of the graphs, to compare two states of the code on one computer

A change that only moves code leaves every text as it is. A change that is meant to alter a graph or a kernel shows where it does.
"""
