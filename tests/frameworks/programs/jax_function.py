# mypy: ignore-errors
import jax
import jax.numpy as jnp
from report import report

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
result = jax.jit(lambda x: jnp.linalg.norm(jnp.sin(x) @ x.T))(jnp.ones((16, 16)))
assert 200 < float(result) < 230
report(
    events.count("/jax/compilation_cache/cache_misses"),
    events.count("/jax/compilation_cache/cache_hits"),
)
