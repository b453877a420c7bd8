# mypy: ignore-errors
import numba
from report import report


@numba.njit(cache=True)
def twice(x):
    return x * 2 + 1


assert twice(3.0) == 7.0
report(sum(twice.stats.cache_misses.values()), sum(twice.stats.cache_hits.values()))
