"""The jobs: each a function from DataFrames to a DataFrame, apart from how it is started and where its result goes."""
