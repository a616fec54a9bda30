"""A machine that nobody has touched: the commands of README in a root with nothing but git."""
