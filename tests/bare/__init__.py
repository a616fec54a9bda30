"""A machine that no one has touched: the commands of README in a root with nothing but git."""
