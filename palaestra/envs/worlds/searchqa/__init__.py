"""Search QA: a graph of named entities, passages about them, questions along the graph, a search engine."""
