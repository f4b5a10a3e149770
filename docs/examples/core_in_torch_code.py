"""A Relational Memory Core in a supervised torch loop: remember the first symbol of a sequence, name it at the end."""

import sys

import torch
from torch import nn

import rmc_agents as rmc

SYMBOLS, BATCH = 4, 64


class Recaller(nn.Module):
    """Sequences of symbols `[B, T]` to logits of the first one, `[B, SYMBOLS]`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 16)
        self.core = rmc.RMC(16, mem_slots=4, head_size=32, num_heads=2)
        self.head = nn.Linear(self.core.output_size, SYMBOLS)

    def forward(self, symbols: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The answer after the last symbol of each sequence; lengths `[B]`."""
        outputs, _ = self.core(self.embedding(symbols), lengths=lengths, batch_first=True)  # as nn.LSTM: [B, T, H]
        return self.head(outputs[torch.arange(len(lengths)), lengths - 1])


def main(updates: int = 100) -> None:
    """Train, and print how often it is right."""
    torch.manual_seed(0)
    model = Recaller()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for update in range(updates):
        symbols = torch.randint(SYMBOLS, (BATCH, 8))
        lengths = torch.randint(4, 9, (BATCH,))
        logits = model(symbols, lengths)
        loss = nn.functional.cross_entropy(logits, symbols[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 20 == 0 or update == updates - 1:
            accuracy = (logits.argmax(dim=1) == symbols[:, 0]).float().mean()
            print(f"update {update}: loss {loss:.3f}, accuracy {accuracy:.0%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
