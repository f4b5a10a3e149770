"""The Relational Memory Core and the relational RNN in NumPy: slow, obvious, one row and one head at a time.

Written from the equations (Santoro et al. 2018; the arithmetic of Sonnet v1), not from the torch code. Weights
are taken by name from a state_dict as float64 arrays; a linear map is `weight @ x + bias`.
"""

import numpy as np

Weights = dict[str, np.ndarray]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def relu(x):
    return np.where(x > 0.0, x, 0.0)


def linear(weights, name, x):
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def layer_norm(weights, name, x):
    normal = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return weights[f"{name}.weight"] * normal + weights[f"{name}.bias"]


def attend(queries, keys, values):
    """One head: rows of queries over rows of keys and values; the attended values, and the weights."""
    attended, attention = [], []
    for query in queries:
        scores = np.array([query @ key / np.sqrt(len(query)) for key in keys])
        exponentials = np.exp(scores - scores.max())
        weights = exponentials / exponentials.sum()
        attended.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        attention.append(weights)
    return attended, attention


def multi_head(qkv_rows, num_heads, key_size, head_size):
    """Rows of [all heads' queries, all heads' keys, all heads' values]; attended rows, and weights `[H, R, R]`."""
    attended_heads, attention = [], []
    for head in range(num_heads):
        queries, keys, values = [], [], []
        for row in qkv_rows:
            all_queries = row[: num_heads * key_size]
            all_keys = row[num_heads * key_size : 2 * num_heads * key_size]
            all_values = row[2 * num_heads * key_size :]
            queries.append(all_queries[head * key_size : (head + 1) * key_size])
            keys.append(all_keys[head * key_size : (head + 1) * key_size])
            values.append(all_values[head * head_size : (head + 1) * head_size])
        attended, weights = attend(queries, keys, values)
        attended_heads.append(attended)
        attention.append(weights)
    rows = [np.concatenate([head[r] for head in attended_heads]) for r in range(len(qkv_rows))]
    return rows, np.array(attention)


def rmc_step(weights, options, x, memory):
    """One lane, one step: input `[I]`, memory `[N, D]`; the next, and attention `[blocks, H, N, N+1]`."""
    embedded_slots = memory + weights["slot_embedding"] if options.get("slot_embedding") else memory
    slots = len(memory)
    row = linear(weights, "input", x)
    rows = [*embedded_slots, row]
    attention = []
    for block in range(options["num_blocks"]):
        name = f"blocks.{block}"
        qkv = [layer_norm(weights, f"{name}.qkv_norm", linear(weights, f"{name}.qkv", r)) for r in rows]
        sizes = options["num_heads"], options["key_size"], options["head_size"]
        attended, block_attention = multi_head(qkv, *sizes)
        attention.append(block_attention[:, :slots])
        rows = [layer_norm(weights, f"{name}.attention_norm", r + a) for r, a in zip(rows, attended, strict=True)]
        for index, r in enumerate(rows):
            hidden = r
            for layer in range(options["attention_mlp_layers"]):
                hidden = linear(weights, f"mlp.{layer}", hidden)
                if layer < options["attention_mlp_layers"] - 1:
                    hidden = relu(hidden)
            rows[index] = layer_norm(weights, f"{name}.mlp_norm", r + hidden)
    candidate = rows[:slots]
    if options["gate_style"] == "none":
        return np.array(candidate), np.array(attention)
    after = []
    for old, embedded, new in zip(memory, embedded_slots, candidate, strict=True):
        gates = linear(weights, "input_gates", row) + linear(weights, "memory_gates", np.tanh(embedded))
        if options["gate_style"] == "coupled":
            forget_gate = sigmoid(gates + options["forget_bias"])
            after.append((1.0 - forget_gate) * np.tanh(new) + forget_gate * old)
            continue
        half = len(gates) // 2
        input_gate = sigmoid(gates[:half] + options["input_bias"])
        forget_gate = sigmoid(gates[half:] + options["forget_bias"])
        after.append(input_gate * np.tanh(new) + forget_gate * old)
    return np.array(after), np.array(attention)


def rmc_initial_memory(slots, width):
    memory = np.zeros((slots, width))
    for i in range(min(slots, width)):
        memory[i, i] = 1.0
    return memory


def rmc_unroll(weights, options, inputs, should_reset, memory):
    """Inputs `[T, B, I]`, flags `[T, B]`, memory `[B, N, D]`; outputs `[T, B, N * D]` and the last memory."""
    steps, lanes = should_reset.shape
    memory = memory.copy()
    outputs = np.zeros((steps, lanes, memory[0].size))
    for t in range(steps):
        for b in range(lanes):
            if should_reset[t, b]:
                memory[b] = rmc_initial_memory(*memory[b].shape)
            memory[b], _ = rmc_step(weights, options, inputs[t, b], memory[b])
            outputs[t, b] = memory[b].flatten()
    return outputs, memory


def lstm_step(weights, x, hidden, cell):
    gates = weights["lstm.weight_ih"] @ x + weights["lstm.weight_hh"] @ hidden + weights["lstm.bias"]
    i, f, g, o = np.split(gates, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def relational_rnn_step(weights, num_heads, x, state):
    """One lane, one step; the next hidden (which is the output), cell and memory."""
    hidden, cell, memory = state
    proposed, cell = lstm_step(weights, x, hidden, cell)
    rows = [*memory, linear(weights, "row", proposed)]
    head_size = memory.shape[1] // num_heads
    attended, _ = multi_head([linear(weights, "qkv", r) for r in rows], num_heads, head_size, head_size)
    rows = [r + linear(weights, "attended", a) for r, a in zip(rows, attended, strict=True)]
    rows = [linear(weights, "mlp.1", relu(linear(weights, "mlp.0", r))) for r in rows]
    after = []
    for old, new in zip(memory, rows[:-1], strict=True):
        i, f, o = np.split(linear(weights, "gates", new), 3)
        after.append(sigmoid(o) * np.tanh(sigmoid(f) * old + sigmoid(i) * np.tanh(new)))
    hidden = np.tanh(linear(weights, "output", np.concatenate([proposed, rows[-1]])))
    return hidden, cell, np.array(after)


def relational_rnn_unroll(weights, num_heads, inputs, should_reset, *state):
    """State: hidden `[B, H]`, cell `[B, H]`, memory `[B, N, D]`; outputs `[T, B, H]` and the last state."""
    steps, lanes = should_reset.shape
    hidden, cell, memory = (leaf.copy() for leaf in state)
    outputs = np.zeros((steps, *hidden.shape))
    for t in range(steps):
        for b in range(lanes):
            if should_reset[t, b]:
                hidden[b], cell[b], memory[b] = 0.0, 0.0, weights["initial_memory"][0]
            lane = relational_rnn_step(weights, num_heads, inputs[t, b], (hidden[b], cell[b], memory[b]))
            hidden[b], cell[b], memory[b] = lane
            outputs[t, b] = hidden[b]
    return outputs, hidden, cell, memory
