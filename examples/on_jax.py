"""JAX over allhands: jax.distributed without arguments, and collectives inside of jit.

allhands run -n 2 examples/on_jax.py
"""

import jax
import jax.numpy as jnp

import allhands as ah
import allhands.jax


def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the weights after a step with the gradients of all processes."""
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.1 * allhands.jax.all_reduce(gradient, "avg")


def main() -> None:
    ah.init_process_group()
    jax.distributed.initialize()  # address, number and index are those of the world
    key = jax.random.key(jax.process_index())
    x = jax.random.normal(key, (64, 3))
    y = x @ jnp.array([1.0, 2.0, 3.0])
    weights, compiled = jnp.zeros(3), jax.jit(step)
    for _ in range(100):
        weights = compiled(weights, x, y)
    allhands.jax.barrier("trained", timeout=60)
    found = [round(weight, 3) for weight in weights.tolist()]
    print(f"process {jax.process_index()} of {jax.process_count()}: {found}")
    jax.distributed.shutdown()
    ah.destroy_process_group()


if __name__ == "__main__":
    main()
